"""Large files written line by line that appear whole or not at all, and their hashes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from workloads.common.atomic import fsync_path


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        fsync_path(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hex; reads it in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_of(path: Path, *endings: str) -> list[Path]:
    """Return the file `path`, or the files below folder `path` with one of `endings`, sorted.

    Hidden files and folders are left out: downloads keep their bookkeeping in them.
    """
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file()
        and (not endings or file.suffix in endings)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
