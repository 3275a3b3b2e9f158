"""Weights on the RAM disk of the node: copied once, found again by the next start there.

In the job's own folder of Soperator's memory there is no next start: the copy goes with the job.
Owns whether a copy can be made, and the reason when it cannot. Nothing here is an error: a server
without a RAM disk reads its weights where they lie.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from workloads.common import atomic
from workloads.common.places import Places

FOLDER = "serve-weights"
_RAM_FILESYSTEMS = ("tmpfs", "ramfs")
_NUM_COPIES = 4
"""Files copied at once: one stream does not fill the link to a network filesystem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Where to read the weights from."""

    path: Path
    is_staged: bool
    text: str
    """What was done, or why nothing was."""
    copy_s: float = 0.0
    num_bytes: int = 0


def stage(folder: Path, places: Places) -> Staged:
    """Return the copy of `folder` on the RAM disk, made where it is missing; else the reason."""
    if not places.has("scratch"):
        return _not_staged(folder, "the stack names no place scratch (storage.places.scratch)")
    scratch = places.path("scratch")
    kind = filesystem_of(scratch)
    if kind not in _RAM_FILESYSTEMS:
        return _not_staged(folder, f"the place scratch, {scratch}, is no RAM disk ({kind})")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    size = sum(path.stat().st_size for path in files)
    target = scratch / FOLDER / f"{folder.name}-{_fingerprint(files)}"
    for path in (target.parent, target):
        if os.path.lexists(path) and not _is_ours(path):
            return _not_staged(
                folder, f"{path} is not of this user, or others may write to it; remove it"
            )
    if target.is_dir():
        return Staged(
            path=target, is_staged=True, text=f"weights are in {target} already", num_bytes=size
        )
    room = min(shutil.disk_usage(scratch).free, _available_memory_bytes() // 2)
    if size > room:
        lying = ", ".join(sorted(path.name for path in (scratch / FOLDER).glob("*"))) or "nothing"
        return _not_staged(
            folder,
            f"{size / 2**30:.2f} GiB of weights, {room / 2**30:.2f} GiB of room in {scratch} "
            f"(half of what memory is free at most; staged there: {lying})",
        )
    began = time.monotonic()
    try:
        with (
            atomic.new_directory(target, replace=True) as partial,
            ThreadPoolExecutor(_NUM_COPIES) as pool,
        ):
            for done in [pool.submit(shutil.copyfile, each, partial / each.name) for each in files]:
                done.result()
    except OSError as error:
        return _not_staged(folder, f"{target} could not be written: {error}")
    taken = time.monotonic() - began
    return Staged(
        path=target,
        is_staged=True,
        text=f"{size / 2**30:.2f} GiB of weights copied to {target} in {taken:.1f} s",
        copy_s=taken,
        num_bytes=size,
    )


def forget_cached(folder: Path) -> None:
    """Ask the kernel to drop its cached pages of the files of `folder`: the next read is cold."""
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def filesystem_of(path: Path) -> str:
    """Return the kind of filesystem that `path` lies on, as the kernel names it."""
    best, kind = -1, "unknown"
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, name, *_ = line.split()
        inside = mount == "/" or resolved == mount or resolved.startswith(f"{mount}/")
        if inside and len(mount) >= best:
            best, kind = len(mount), name
    return kind


def _is_ours(path: Path) -> bool:
    """Whether it is a folder, no link, that nobody but root and this user can have filled."""
    info = path.lstat()
    return (
        stat.S_ISDIR(info.st_mode)
        and info.st_uid in (0, os.geteuid())
        and not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _not_staged(folder: Path, reason: str) -> Staged:
    return Staged(path=folder, is_staged=False, text=f"weights are not staged: {reason}")


def _fingerprint(files: list[Path]) -> str:
    lines = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def _available_memory_bytes() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")
