"""Files of a data set: their hashes, and which there are."""

from __future__ import annotations

import hashlib
from pathlib import Path


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
