"""Objects on the disk: one file each in a folder for each bucket's id, written whole or not at all.

A bucket that was made anew has another id, so it starts empty. Keeps no older versions of a key.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

_LONGEST: Final = 255
"""Bytes of a file's name."""
_PARTIAL: Final = ".partial-"
"""Start of a name that no key has: quote() leaves the dot, so such a key is refused."""


class KeyRefusedError(Exception):
    """A key that cannot be kept here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One object."""

    key: str
    size: int
    modified: datetime
    tag: str
    """Changes with every write; S3 promises no more for all objects."""


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of every bucket under one folder."""

    folder: Path

    def put(self, bucket_id: str, key: str, content: bytes) -> Stored:
        """Writes an object over the one of the same key."""
        path = self._path(bucket_id, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=path.parent)
        with os.fdopen(handle, "wb") as new:
            new.write(content)
        Path(partial).replace(path)
        return _stored(key, path)

    def find(self, bucket_id: str, key: str) -> Stored | None:
        """The object without its content, or None."""
        try:
            return _stored(key, self._path(bucket_id, key))
        except FileNotFoundError:
            return None

    def read(self, bucket_id: str, key: str, start: int, count: int) -> bytes:
        """Bytes of an object from `start`."""
        with self._path(bucket_id, key).open("rb") as file:
            file.seek(start)
            return file.read(count)

    def delete(self, bucket_id: str, key: str) -> None:
        """Removes an object that may be gone already."""
        self._path(bucket_id, key).unlink(missing_ok=True)

    def keys(self, bucket_id: str, prefix: str) -> Iterator[str]:
        """Keys with the prefix, in the order of their UTF-8 bytes."""
        folder = self.folder / bucket_id
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        keys = (unquote(name) for name in names if not name.startswith(_PARTIAL))
        yield from sorted((key for key in keys if key.startswith(prefix)), key=str.encode)

    def _path(self, bucket_id: str, key: str) -> Path:
        name = quote(key, safe="")
        if len(name) > _LONGEST or name in (".", "..") or name.startswith(_PARTIAL):
            raise KeyRefusedError(
                f"key of {len(key)} characters cannot be kept: at most {_LONGEST} after encoding"
            )
        return self.folder / bucket_id / name


def _stored(key: str, path: Path) -> Stored:
    found = path.stat()
    tag = hashlib.sha256(f"{found.st_ino} {found.st_mtime_ns} {found.st_size}".encode())
    return Stored(
        key=key,
        size=found.st_size,
        modified=datetime.fromtimestamp(found.st_mtime, UTC),
        tag=tag.hexdigest()[:32],
    )
