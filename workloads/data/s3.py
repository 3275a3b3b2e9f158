"""Files below a prefix of object storage, fetched in pieces that continue where they stopped.

Owns `s3://bucket/prefix`. Credentials, AWS_ENDPOINT_URL (Nebius: https://storage.<region>.nebius.cloud)
and AWS_REGION come from the environment; without credentials requests are anonymous.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from workloads.common.exit_codes import ConfigError, DataError
from workloads.data.remote import Remote, RemoteFile

SCHEME = "s3://"
_CHUNK_BYTES = 16 << 20


def describe(source: str) -> Remote:
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
        raise DataError(f"{source}: cannot be listed: {' '.join(str(error).split())}") from error
    entries = sorted(
        (entry for entry in entries if entry.type == fs.FileType.File), key=lambda each: each.path
    )
    if not entries:
        raise DataError(f"{source}: has no object; check bucket, prefix and AWS_ENDPOINT_URL")
    base = root if found.type != fs.FileType.File else root.rpartition("/")[0]
    files = tuple(
        RemoteFile(path=entry.path.removeprefix(f"{base}/"), size_bytes=entry.size)
        for entry in entries
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


def fetch(remote: Remote, folder: Path) -> None:
    """Bring the objects to `folder`; a file that is there in part is continued."""
    system = _system()
    root = _root(remote.source)
    for file in remote.files:
        target = remote.path_of(file, folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        single = len(remote.files) == 1 and PurePosixPath(root).name == file.path
        try:
            _fetch(system, root if single else f"{root}/{file.path}", target, file.size_bytes)
        except OSError as error:
            raise DataError(
                f"{remote.source}: the download of {file.path} stopped: "
                f"{' '.join(str(error).split())}; the same command continues it"
            ) from error


def _fetch(system: Any, key: str, target: Path, size_bytes: int) -> None:
    have = target.stat().st_size if target.exists() else 0
    with system.open_input_file(key) as source, target.open("ab") as sink:
        source.seek(have)
        while have < size_bytes:
            chunk = source.read(min(_CHUNK_BYTES, size_bytes - have))
            if not chunk:
                raise OSError(f"ends after {have} of {size_bytes} bytes")
            sink.write(chunk)
            have += len(chunk)
        sink.flush()
        os.fsync(sink.fileno())


def _root(source: str) -> str:
    root = source.removeprefix(SCHEME).strip("/")
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
