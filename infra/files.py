"""Files that are whole or not there: write(path, text).

A file is whole also after `kill -9` or on a full disk. What a path leads to keeps its kind: a link
stays a link, a device or a FIFO is written into.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write(path: Path, content: str | bytes, *, mode: int | None = None) -> None:
    """Replaces `path` in one step; parents are made. Without `mode` an older file's mode stays.

    With `mode` the name itself is replaced, whatever it led to: a secret follows no link.
    """
    data = content.encode() if isinstance(content, str) else content
    if mode is None:
        kind = _kind(path)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if kind and not stat.S_ISREG(kind):
            # A rename would put a file where the device was, and `-o /dev/null` would end it.
            with path.open("wb", buffering=0) as file:
                _all(file.fileno(), data)
            return
        path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        # A secret is never in a file that others can open, not even for a moment.
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode or 0o666)
        with os.fdopen(opened, "wb") as file:
            if mode is None and path.exists():
                part.chmod(path.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        error.filename = error.filename or str(path)  # of a full disk write(2) names no file
        raise
    finally:
        part.unlink(missing_ok=True)


def _kind(path: Path) -> int:
    """The file mode behind every link; 0 where nothing is."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


@contextmanager
def alone(
    path: Path, refusal: Exception, waits: Callable[[str], object] | None = None
) -> Iterator[None]:
    """The lock of a file, which is made, or of a folder that is there; it dies with its holder.

    Where it is held: `refusal`, or, of a file, `waits` gets the number of the process that holds
    it, and the block begins once that is over.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    is_file = not path.is_dir()
    # Over NFS the lock is one of fcntl(2), and EBADF where the file is not open to write: flock(2).
    how = os.O_RDWR | os.O_CREAT if is_file else os.O_RDONLY | os.O_DIRECTORY
    descriptor = os.open(path, how, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if waits is None:
                raise refusal from error
            waits(os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if is_file:
            with suppress(OSError):  # a full disk: only who waits would read it
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
