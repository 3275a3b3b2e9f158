"""A model or data set from the hub or object storage to a folder of the cluster.

Owns the order: licence and size are printed, free space is checked, files arrive in a hidden folder
that a second try continues, and the folder gets its name when every file is whole. Runs on the
login node (`soperator data push`), so that no GPU waits for a download.
Usage: python -m workloads.data.download hf://Qwen/Qwen2-7B-Instruct /mnt/model/Qwen2-7B-Instruct
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import urlsplit

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.data.manifest import command


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file."""

    path: str
    size_bytes: int
    key: str = ""
    """Bucket and name of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A model or data set, before it is fetched."""

    source: str
    revision: str
    """Changes when any file does."""
    licence: str | None
    """None: the source does not say."""
    files: tuple[RemoteFile, ...]

    def __post_init__(self) -> None:
        """Refuse names that mean another place: whoever owns the source chooses them."""
        for file in self.files:
            if {"", ".", ".."} & set(file.path.split("/")):
                raise DataError(
                    f"{self.source}: holds a file named {file.path!r}, which is no path below a "
                    "folder; take a prefix or revision without it, or ask the owner to rename it"
                )

    def path_of(self, file: RemoteFile, folder: Path) -> Path:
        """Return where `file` goes below `folder`; a link on the way must not lead out of it."""
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{path}: leads out of {folder}, by a link; remove the link")
        return path

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size_bytes for file in self.files)


HUB = "hf://"


def describe_repository(source: str) -> Remote:
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
    # HTTPError is of the hub client's HTTP library: a lost connection is told by that alone.
    except (hub_errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise DataError(f"{source}: the hub did not answer: {_line(error)}") from error
    if info.gated and not token:
        raise DataError(_gated(kind, name, has_token=False))
    card = info.card_data.to_dict() if info.card_data else {}
    return Remote(
        source=source,
        revision=info.sha,
        licence=str(card.get("license_name") or card.get("license") or "") or None,
        files=tuple(
            RemoteFile(path=each.rfilename, size_bytes=each.size or 0)
            for each in info.siblings or ()
        ),
    )


def fetch_repository(remote: Remote, folder: Path) -> None:
    """Bring the files of `remote` to `folder`; what is there of an earlier try is continued."""
    from huggingface_hub import HfApi
    from huggingface_hub import errors as hub_errors

    kind, name, _ = _parts(remote.source)
    token = os.environ.get("HF_TOKEN") or False
    what: dict[str, Any] = {"repo_type": kind, "revision": remote.revision, "local_dir": folder}
    try:
        HfApi(token=token).snapshot_download(name, **what)
        checked = HfApi(token=token).verify_repo_checksums(name, **what)
    except hub_errors.GatedRepoError as error:
        raise DataError(_gated(kind, name, has_token=bool(token))) from error
    except (hub_errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        raise DataError(
            f"{remote.source}: the download stopped: {_line(error)}; the same command continues it"
        ) from error
    wrong = [each["path"] for each in checked.mismatches]
    for path in wrong:
        (folder / path).unlink()
    if wrong:
        raise DataError(
            f"{remote.source}: {', '.join(wrong)} is not what the hub has of it and was removed; "
            "the same command fetches it again"
        )


def _parts(source: str) -> tuple[Literal["model", "dataset"], str, str | None]:
    rest, _, revision = source.removeprefix(HUB).partition("@")
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
    # A query of the hub's links is a signature: whoever reads the log could fetch by it.
    text = re.sub(r"\?\S*=\S*", "?...", str(error))
    return " ".join(text.split())[:300] or type(error).__name__


S3 = "s3://"
_CHUNK_BYTES = 16 << 20


def describe_objects(source: str) -> Remote:
    """Return the files below the prefix, or the one object that it names."""
    from pyarrow import fs

    root = _root(source)
    system = _system()
    try:
        found = system.get_file_info(root)
        entries = (
            [found]
            if found.type == fs.FileType.File
            else system.get_file_info(fs.FileSelector(root, recursive=True))
        )
    except OSError as error:
        raise DataError(f"{source}: cannot be listed: {_line(error)}") from error
    entries = sorted(
        (entry for entry in entries if entry.type == fs.FileType.File), key=lambda each: each.path
    )
    if not entries:
        raise DataError(f"{source}: has no object; check bucket, prefix and AWS_ENDPOINT_URL")
    base = root if found.type != fs.FileType.File else root.rpartition("/")[0]
    files = tuple(
        RemoteFile(path=each.path.removeprefix(f"{base}/"), size_bytes=each.size, key=each.path)
        for each in entries
    )
    marks = [(entry.path, entry.size, entry.mtime_ns) for entry in entries]
    licences = [f.path for f in files if PurePosixPath(f.path).stem.upper() in _LICENCE_NAMES]
    return Remote(
        source=source,
        revision=hashlib.sha256(json.dumps(marks).encode()).hexdigest(),
        licence=f"see {licences[0]}" if licences else None,
        files=files,
    )


_LICENCE_NAMES = ("LICENSE", "LICENCE", "COPYING")


def fetch_objects(remote: Remote, folder: Path) -> None:
    """Bring the objects to `folder`; a file that is there in part is continued."""
    system = _system()
    for file in remote.files:
        target = remote.path_of(file, folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _fetch_object(system, file.key, target, file.size_bytes)
        except OSError as error:
            raise DataError(
                f"{remote.source}: the download of {file.path} stopped: {_line(error)}; "
                "the same command continues it"
            ) from error


def _fetch_object(system: Any, key: str, target: Path, size_bytes: int) -> None:
    have = target.stat().st_size if target.exists() else 0
    with system.open_input_file(key) as source:
        source.seek(have)
        with target.open("ab") as sink:
            while have < size_bytes:
                chunk = source.read(min(_CHUNK_BYTES, size_bytes - have))
                if not chunk:
                    raise OSError(f"ends after {have} of {size_bytes} bytes")
                sink.write(chunk)
                have += len(chunk)
            sink.flush()
            os.fsync(sink.fileno())
        if not _is_object(source, target):
            target.unlink()
            raise OSError("what arrived is not what the store has of it, and was removed")


# What the common tools upload in one part: rclone, AWS's, pyarrow's, s3cmd's, MinIO's and more.
_PART_BYTES = tuple(size << 20 for size in (5, 8, 10, 15, 16, 32, 50, 64, 100, 128))


def _is_object(source: Any, file: Path) -> bool:
    """Whether `file` is the object open as `source`: by its ETag, else by reading it once more.

    An ETag is the MD5 of the content, or of the MD5s of the parts that it came in, with their
    number; one of an object under a key of the customer's is neither.
    https://docs.aws.amazon.com/AmazonS3/latest/API/API_Object.html
    """
    etag = source.metadata().get("ETag", b"").decode().strip('"')
    size, num = file.stat().st_size, etag.partition("-")[2]
    parts = [part for part in _PART_BYTES if str(-(-size // part)) == num] if num else [size]
    if etag in {_etag(file, part, in_parts=bool(num)) for part in parts}:
        return True
    log(f"{file.name}: its ETag tells nothing that can be computed; it is read again to compare")
    source.seek(0)
    with file.open("rb") as here:
        while chunk := here.read(_CHUNK_BYTES):
            if source.read(len(chunk)) != chunk:
                return False
    return True


def _etag(file: Path, part_bytes: int, *, in_parts: bool) -> str:
    with file.open("rb") as content:
        if not in_parts:
            return hashlib.file_digest(content, _md5).hexdigest()
        sums = [_md5(part).digest() for part in iter(lambda: content.read(part_bytes), b"")]
    return f"{_md5(b''.join(sums)).hexdigest()}-{len(sums)}"


_md5 = functools.partial(hashlib.md5, usedforsecurity=False)


def _root(source: str) -> str:
    root = source.removeprefix(S3).strip("/")
    if not root:
        raise ConfigError(f"{source}: write s3://bucket/prefix")
    return root


def _system() -> Any:
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")  # it is asked for minutes elsewhere
    from pyarrow import fs

    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
    options: dict[str, Any] = {"region": os.environ.get("AWS_REGION") or "us-east-1"}
    if endpoint.netloc:
        options |= {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme}
    if not os.environ.get("AWS_ACCESS_KEY_ID"):
        options["anonymous"] = True
    return fs.S3FileSystem(**options)


SOURCE_FILE = ".soperator_source.json"
SECRETS = ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
SETTINGS = ("HF_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_REGION")


def download(source: str, target: Path, *, only_describe: bool = False) -> None:
    """Make folder `target` from `source`; nothing to do when it holds this revision whole."""
    if not source.startswith((HUB, S3)):
        raise ConfigError(f"{source}: expected {HUB}... or {S3}...")
    is_hub = source.startswith(HUB)
    remote = describe_repository(source) if is_hub else describe_objects(source)
    log(
        f"{source}: {len(remote.files)} files, {remote.size_bytes / 2**30:.2f} GiB, "
        f"licence: {remote.licence or 'not stated by the source; read its terms'}"
    )
    if only_describe:
        return
    if _is_whole(target, remote):
        log(f"{target}: holds revision {remote.revision[:12]} already; nothing to do")
        return
    if target.exists():
        raise DataError(
            f"{target}: exists and is not revision {remote.revision[:12]} of {source}; "
            "give another path, or move it away"
        )
    partial = target.with_name(f".{target.name}.{remote.revision[:12]}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    _check_space(remote, partial)
    (fetch_repository if is_hub else fetch_objects)(remote, partial)
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # the hub client's bookkeeping
    _check_sizes(remote, partial)
    origin = {
        "source": source,
        "revision": remote.revision,
        "licence": remote.licence,
        "files": {file.path: file.size_bytes for file in remote.files},
    }
    atomic.write_text(partial / SOURCE_FILE, json.dumps(origin, indent=2) + "\n")
    partial.rename(target)
    atomic.fsync_path(target.parent)
    log(f"{target}: whole, revision {remote.revision[:12]}")


def _check_space(remote: Remote, partial: Path) -> None:
    have = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
    free = shutil.disk_usage(partial).free
    if remote.size_bytes - have > free:
        raise DataError(
            f"{partial.parent}: {free / 2**30:.2f} GiB free, {remote.source} needs "
            f"{(remote.size_bytes - have) / 2**30:.2f} GiB; enlarge the filesystem or remove data"
        )


def _check_sizes(remote: Remote, folder: Path) -> None:
    for file in remote.files:
        path = folder / file.path
        have = path.stat().st_size if path.is_file() else 0
        if have != file.size_bytes:
            raise DataError(
                f"{remote.source}: {file.path} has {have} of {file.size_bytes} bytes; "
                "the same command continues it"
            )


def _is_whole(target: Path, remote: Remote) -> bool:
    try:
        origin = json.loads((target / SOURCE_FILE).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return origin["revision"] == remote.revision and all(
        (target / path).is_file() and (target / path).stat().st_size == size
        for path, size in origin["files"].items()
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.download", description="Hub or object storage to a folder"
    )
    parser.add_argument(
        "source", help="hf://[datasets/]owner/name[@revision] or s3://bucket/prefix"
    )
    parser.add_argument("target", type=Path, help="folder to make")
    parser.add_argument("--describe", action="store_true", help="print licence and size only")
    parser.add_argument(
        "--environment-from-stdin",
        action="store_true",
        help=f"read {', '.join((*SECRETS, *SETTINGS))} as one JSON object from standard input",
    )
    options = parser.parse_args(arguments)
    if options.environment_from_stdin:
        given = json.loads(sys.stdin.readline() or "{}")
        os.environ |= {name: given[name] for name in (*SECRETS, *SETTINGS) if given.get(name)}
    return command(lambda: download(options.source, options.target, only_describe=options.describe))


if __name__ == "__main__":
    sys.exit(main())
