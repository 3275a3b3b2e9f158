"""Files of a data set: their hashes, and which there are."""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path

from workloads.common.exit_codes import WorkloadError


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


@contextlib.contextmanager
def told_when_full(folder: Path | None = None) -> Iterator[None]:
    """Turn a full filesystem, or a used-up quota, into a failure that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise WorkloadError(
            f"{folder or error.filename or 'the output'}: no space is left ({error.strerror}); "
            "free some there, or give its filesystem more in the stack, then run the same again; "
            "what was there before is as it was"
        ) from error
