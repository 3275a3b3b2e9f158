"""Files and folders that appear whole or not at all, also after `kill -9`."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from workloads.common.exit_codes import ConfigError, full_text


def fsync_path(path: Path) -> None:
    """Flush a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def foreign(path: Path) -> str | None:
    """Return why others decide what `path` holds, and what mends that; None: it is ours alone.

    Ours is what this user or root owns, is no link, and nobody else may write to; also nothing.
    """
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(info.st_mode):
        return f"is a link of {_user(info.st_uid)} to {path.readlink()}; remove it: rm {path}"
    if info.st_uid not in (0, os.geteuid()):
        return (
            f"is of {_user(info.st_uid)}, not of {_user(os.geteuid())} or root; where you "
            f"trust what it holds, as root: chown -R {_user(os.geteuid(), False)} {path}"
        )
    # A group that this user is in, as of a team whose folders hand it on, is the owner's choice.
    is_ours = info.st_gid in (0, os.getegid(), *os.getgroups())
    wide = stat.S_IWOTH | (0 if is_ours else stat.S_IWGRP)
    if info.st_mode & wide:
        mode = stat.S_IMODE(info.st_mode)
        return f"has mode {mode:04o}, others may write to it; mend it: chmod go-w {path}"
    return None


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError where others decide what `path` holds."""
    if whose := foreign(path):
        raise ConfigError(f"{path}: {whose}")


def own_folder(path: Path, *, below: Path) -> Path:
    """Make `path` and what it lies in below the shared folder `below`, and return it.

    What is there already stays as it is, and is refused where others decide what it holds.
    """
    below.mkdir(parents=True, exist_ok=True)
    for folder in reversed([path, *(each for each in path.parents if below in each.parents)]):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        refuse_foreign(folder)
    return path


def _user(uid: int, with_uid: bool = True) -> str:
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}" if with_uid else str(uid)
    return f"{name} (uid {uid})" if with_uid else name


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` where the filesystem is full: a write says so without, libraries in their way."""
    try:
        yield
    except Exception as error:
        if (full := full_text(error)) is None or (isinstance(error, OSError) and error.filename):
            raise
        raise OSError(errno.ENOSPC, full, str(path)) from error


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes `path` when the block ends well; parents are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A name that nobody knows before, and no file that is there: its folder may be shared.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with writing(path), partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        fsync_path(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` atomically; parents are made."""
    with new_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def new_directory(path: Path, *, replace: bool = False, readable: bool = False) -> Iterator[Path]:
    """Yield a scratch folder beside `path` that becomes `path` when the block ends well.

    An error removes the scratch folder. With `replace` an existing folder is exchanged; without it
    an existing one is an error, as nothing here deletes results. With `readable` the files are
    0644: safetensors writes 0600, and a job that evaluates may be another user's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_foreign(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    refuse_foreign(partial)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        with writing(path):
            yield partial
        for each in partial.rglob("*") if readable else ():
            each.chmod(0o755 if each.is_dir() else 0o644)
        for folder, _, names in os.walk(partial):
            for name in names:
                fsync_path(Path(folder) / name)
            fsync_path(Path(folder))
        if path.exists() and replace:
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            path.rename(old)
            partial.rename(path)
            shutil.rmtree(old, ignore_errors=True)  # what cannot go now does not undo what is there
        else:
            partial.rename(path)
        fsync_path(path.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
