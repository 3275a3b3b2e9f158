"""Models and data sets of the Hugging Face hub: what they are, and their files, checked.

Owns `hf://owner/name[@revision]` and `hf://datasets/owner/name[@revision]`, licence and size before
a byte is fetched, and what to do about gated repositories. The token comes from HF_TOKEN only.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Literal

from workloads.common.exit_codes import ConfigError, DataError
from workloads.data.files import sha256
from workloads.data.remote import Remote, RemoteFile

SCHEME = "hf://"
_CHUNK_BYTES = 1 << 20


def describe(source: str) -> Remote:
    """Return licence, size and files of a repository; refuses a gated one without a token."""
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub_errors

    kind, name, revision = _parts(source)
    token = os.environ.get("HF_TOKEN") or False
    try:
        info: Any = HfApi(token=token).repo_info(
            name, repo_type=kind, revision=revision, files_metadata=True
        )
    except hub_errors.GatedRepoError as error:
        raise DataError(_gated(kind, name, has_token=bool(token))) from error
    except hub_errors.RevisionNotFoundError as error:
        raise DataError(f"{source}: has no revision {revision!r}; look at its branches") from error
    except hub_errors.RepositoryNotFoundError as error:
        who = "with HF_TOKEN's account" if token else "without a token"
        raise DataError(
            f"{source}: the hub shows no such {kind} {who}; check the name, or set HF_TOKEN to a "
            "token that may read it if it is private"
        ) from error
    except (hub_errors.HfHubHTTPError, OSError) as error:
        raise DataError(f"{source}: the hub did not answer: {_line(error)}") from error
    if info.gated and not token:
        raise DataError(_gated(kind, name, has_token=False))
    card = info.card_data.to_dict() if info.card_data else {}
    return Remote(
        source=source,
        revision=info.sha,
        licence=str(card.get("license_name") or card.get("license") or "") or None,
        files=tuple(_file(sibling) for sibling in info.siblings or ()),
    )


def fetch(remote: Remote, folder: Path) -> None:
    """Bring the files of `remote` to `folder`; what is there of an earlier try is continued."""
    from huggingface_hub import errors as hub_errors
    from huggingface_hub import snapshot_download

    kind, name, _ = _parts(remote.source)
    token = os.environ.get("HF_TOKEN") or False
    try:
        snapshot_download(
            name, repo_type=kind, revision=remote.revision, local_dir=folder, token=token
        )
    except hub_errors.GatedRepoError as error:
        raise DataError(_gated(kind, name, has_token=bool(token))) from error
    except (hub_errors.HfHubHTTPError, OSError) as error:
        raise DataError(
            f"{remote.source}: the download stopped: {_line(error)}; the same command continues it"
        ) from error
    for file in remote.files:
        path = folder / file.path
        if file.sha256:
            good = sha256(path) == file.sha256
        else:
            good = file.git_sha1 is None or _git_sha1(path) == file.git_sha1
        if not good:
            path.unlink()
            raise DataError(
                f"{remote.source}: {file.path} is not what the hub has of it and was removed; "
                "the same command fetches it again"
            )


def _parts(source: str) -> tuple[Literal["model", "dataset"], str, str | None]:
    rest, _, revision = source.removeprefix(SCHEME).partition("@")
    kind: Literal["model", "dataset"] = "model"
    for prefix, of in (("datasets/", "dataset"), ("models/", "model")):
        if rest.startswith(prefix):
            kind, rest = of, rest.removeprefix(prefix)  # type: ignore[assignment]
    if rest.count("/") != 1 or not all(rest.split("/")):
        raise ConfigError(
            f"{source}: write hf://owner/name for a model or hf://datasets/owner/name for a data "
            "set, with @revision to pin one"
        )
    return kind, rest, revision or None


def _file(sibling: Any) -> RemoteFile:
    lfs = sibling.lfs
    return RemoteFile(
        path=sibling.rfilename,
        size_bytes=sibling.size or 0,
        sha256=lfs.sha256 if lfs else None,
        git_sha1=None if lfs else sibling.blob_id,
    )


def _git_sha1(path: Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _gated(kind: str, name: str, *, has_token: bool) -> str:
    page = f"https://huggingface.co/{'datasets/' if kind == 'dataset' else ''}{name}"
    if has_token:
        return (
            f"{name} is gated and the account of HF_TOKEN may not read it: ask for access at "
            f"{page}, wait until its owners grant it, and check that the token has the right to "
            "read gated repositories"
        )
    return (
        f"{name} is gated: accept its terms at {page}, make a token with read rights at "
        "https://huggingface.co/settings/tokens, export it as HF_TOKEN, and run this again"
    )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
