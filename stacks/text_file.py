"""Reads a file that somebody else wrote, never more of it than fits: read_text(path).

A pull request can name `/dev/zero` or a FIFO where a key or a stack belongs; whoever prices it
must neither wait for ever nor run out of memory.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

AT_MOST_BYTES: Final = 64 << 20


def read_text(path: Path, *, at_most_bytes: int = AT_MOST_BYTES) -> str:
    """The text of a regular file; OSError for another kind or more bytes, UnicodeDecodeError."""
    return read_bytes(path, at_most_bytes=at_most_bytes).decode("utf-8")


def read_bytes(path: Path, *, at_most_bytes: int = AT_MOST_BYTES) -> bytes:
    """The bytes of a regular file; OSError for another kind or more of them."""
    # Without O_NONBLOCK a FIFO is waited for before anybody can see that it is one.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "a device, FIFO or socket, not a regular file", str(path))
        # Files of /proc say 0 bytes and have more.
        content = b"" if found.st_size > at_most_bytes else file.read(at_most_bytes + 1)
        if found.st_size > at_most_bytes or len(content) > at_most_bytes:
            raise OSError(errno.EFBIG, f"more than {_size(at_most_bytes)}", str(path))
    return content


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
