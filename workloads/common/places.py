"""Logical places (data, model, chkpt, ...) of a stack, resolved to paths inside the job.

Owns the environment contract `SOPERATOR_PLACE_<PLACE>`, the look-up of models and data that the
jail image brings, and copies of such a folder on the place scratch of each node. A copy is named by
what was copied, found again by later jobs of its user, and removed once it is in the way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pwd
import shutil
import stat
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.hardware import available_bytes
from workloads.common.log import at

PLACES = ("data", "model", "chkpt", "elastic", "logs", "results", "cache", "scratch")
IMAGE_MODELS = Path("/opt/soperator/models")
IMAGE_DATA = Path("/opt/soperator/data")


class Places:
    """Paths of the logical places that this job was given."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def path(self, place: str) -> Path:
        if place not in PLACES:
            raise ConfigError(f"place '{place}' is unknown; allowed: {', '.join(PLACES)}")
        variable = f"SOPERATOR_PLACE_{place.upper()}"
        value = self._environment.get(variable)
        if not value:
            raise ConfigError(
                f"{variable} is not set: the recipe needs the place '{place}'; declare "
                f"storage.places.{place} in the stack, or export {variable}=/some/path"
            )
        if not value.startswith("/"):
            raise ConfigError(f"{variable}: '{value}' is not an absolute path")
        return Path(value)

    def has(self, place: str) -> bool:
        """Whether the stack names `place`."""
        return bool(self._environment.get(f"SOPERATOR_PLACE_{place.upper()}"))

    def expand(self, value: str, *, at: str) -> Path:
        """Return `value` with `{place:NAME}` replaced; `at` is the recipe key for the message."""
        if value.startswith("{place:"):
            name, closed, rest = value.removeprefix("{place:").partition("}")
            if not closed:
                raise ConfigError(f"{at}: '{value}' has no closing brace; write {{place:data}}/x")
            return self.path(name) / rest.lstrip("/")
        if not value.startswith("/"):
            raise ConfigError(
                f"{at}: '{value}' is neither an absolute path nor starts with {{place:NAME}}"
            )
        return Path(value)

    def model_dir(self, name: str) -> Path:
        """Return the folder of model `name`: the user's own, the shared one, the jail image's."""
        return self._find(name, "model", IMAGE_MODELS, "config.json")

    def data_path(self, name: str) -> Path:
        """Return a file or folder of raw data: the user's own, the shared one, the jail image's."""
        return self._find(name, "data", IMAGE_DATA, None)

    def _shared(self, place: str) -> list[Path]:
        """Where `place` has what is there for every user, who reads it and changes nothing."""
        value = self._environment.get(f"SOPERATOR_SHARED_{place.upper()}")
        return [Path(value)] if value else []

    def _find(self, name: str, place: str, image: Path, marker: str | None) -> Path:
        if name.startswith(("/", "{")):
            candidates = [self.expand(name, at=place)]
        else:
            folders = [self.path(place), *self._shared(place), image]
            names = dict.fromkeys((name, Path(name).name))  # without its owner too
            candidates = [folder / each for each in names for folder in folders]
        for candidate in candidates:
            if (candidate / marker).is_file() if marker else candidate.exists():
                return candidate
        need = f" with a {marker}" if marker else ""
        raise DataError(
            f"{place} '{name}' was not found{need}; looked in: "
            f"{', '.join(str(path) for path in candidates)}; copy it to the first of these"
        )


def own_folder(mount: Path) -> Path:
    """Where this process may write on a mount: the user's home, or what `pulumi up` made there.

    The mount itself where it has neither.
    """
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container's user has no entry
        return mount
    if Path(user.pw_dir).is_relative_to(mount):
        return Path(user.pw_dir)
    own = mount / "users" / user.pw_name
    return own if own.is_dir() else mount


_RAM = ("tmpfs", "ramfs")
_NUM_COPIES = 4
"""Files copied at once: one stream does not fill the link to a network filesystem."""
_BLOCK_BYTES = 8 << 20
WHOLE_BYTES = 1 << 20  # files up to this size count with their bytes
_KEPT_S = 7 * 24 * 3600
"""Seconds after which a copy that nobody used goes with the next one of its user and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageKind:
    """What is copied to which folder of the place scratch, where that is on what filesystem."""

    what: str
    folder: str
    files: tuple[str, ...]
    filesystems: tuple[str, ...]


WEIGHTS = StageKind(what="weights", folder="serve-weights", files=("*",), filesystems=_RAM)
# Those of one machine alone. Not in memory: rows are read once a rank, and what one has read others
# find in the page cache, which gives way to a job; what lies on a RAM disk counts as the job's.
PREPARED = StageKind(
    what="data",
    folder="preprocessed",
    files=("tokens_*", "rows_*", "images_*", "*manifest.json"),
    filesystems=("ext4", "xfs", "btrfs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Where to read from."""

    path: Path
    is_staged: bool
    text: str
    """What was done, or why nothing was."""
    copy_s: float = 0.0
    num_bytes: int = 0

    @property
    def metrics(self) -> dict[str, float | int]:
        """Return what a run record says of it."""
        copied = {"stage_copy_s": self.copy_s, "staged_bytes": self.num_bytes}
        return {"is_staged": int(self.is_staged)} | (copied if self.is_staged else {})


def stage(
    folder: Path, places: Places, kind: StageKind, *, limit_s: float = float("inf")
) -> Staged:
    """Return this node's copy of what `folder` holds, made where it is missing; else the reason.

    Processes of a node that ask at the same time copy once: the others wait. Who waits or copies
    longer than `limit_s` reads `folder`. Until the end of this process nobody removes what it got.
    """
    try:
        return _copy(folder, places, kind, time.monotonic() + limit_s)
    except (OSError, ConfigError) as error:
        return Staged(path=folder, is_staged=False, text=f"{kind.what} are not staged: {error}")


def discard(staged: Staged) -> None:
    """Remove a copy that cannot be read; who has its files open reads on."""
    with contextlib.suppress(OSError):  # another rank was first
        _erase(staged.path)


def _copy(folder: Path, places: Places, kind: StageKind, deadline: float) -> Staged:
    if not places.has("scratch"):
        raise ConfigError("the stack names no place scratch (storage.places.scratch)")
    scratch = places.path("scratch")
    if (filesystem := filesystem_of(scratch)) not in kind.filesystems:
        allowed = " or ".join(kind.filesystems)
        raise ConfigError(f"the place scratch, {scratch}, is {filesystem}, not {allowed}")
    if folder.stat().st_dev == scratch.stat().st_dev:
        raise ConfigError(f"{folder} lies on the filesystem of the place scratch, {scratch}")
    files = sorted(path for each in kind.files for path in folder.glob(each) if path.is_file())
    if not files:
        raise ConfigError(f"{folder} holds no {' or '.join(kind.files)}")
    size = sum(path.stat().st_size for path in files)
    own, copy_s = _own_folder(scratch, kind.folder), 0.0
    before = content_hash(files, folder, with_times=True)
    target = own / f"{folder.name}-{before[:12]}"
    text = f"{kind.what} are in {target} already"
    at(f"copying {kind.what} to {own}, or waiting for the process that does")
    if not _take(target):
        with (own / ".lock").open("a") as lock:
            _wait_for(lock, deadline)
            if not _take(target):
                _make_room(own, size, in_memory=filesystem in _RAM)
                began = time.monotonic()
                _write(files, target, before, deadline)
                copy_s = time.monotonic() - began
                text = f"{size / 2**30:.2f} GiB of {kind.what} copied to {target} in {copy_s:.1f} s"
                _take(target)
    return Staged(path=target, is_staged=True, text=text, copy_s=copy_s, num_bytes=size)


def _own_folder(scratch: Path, name: str) -> Path:
    """Return the folder of this user for such copies, which others cannot look into.

    Below the folder of that name where root shares it with all, as the disk of a stack has it. What
    another user made, he can exchange: then beside it.
    """
    user = str(os.geteuid())
    own = scratch / name / user if _is_shared(scratch / name) else scratch / f"{name}-{user}"
    if not _is_shared(own.parent):
        atomic.refuse_foreign(own.parent)
    atomic.own_folder(own, below=own.parent).chmod(0o700)
    return own


def _is_shared(folder: Path) -> bool:
    """Whether it is like /tmp: everybody may write, and nobody but root moves what is another's."""
    mode = folder.lstat().st_mode if folder.exists() else 0
    return stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX) and not folder.lstat().st_uid


def _take(target: Path) -> bool:
    """Whether the copy is there; then it stays until this process ends."""
    atomic.refuse_foreign(target)
    try:
        descriptor = os.open(target, os.O_RDONLY)
    except FileNotFoundError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        if os.path.samestat(os.fstat(descriptor), target.stat()):
            os.utime(descriptor)
            return True  # never closed
    os.close(descriptor)
    return False


def _wait_for(lock: IO[str], deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _check(deadline)
            time.sleep(0.1)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise ConfigError("no copy in the time that this process may wait")


def _write(files: Sequence[Path], target: Path, before: str, deadline: float) -> None:
    is_over = threading.Event()
    with atomic.new_directory(target) as partial, ThreadPoolExecutor(_NUM_COPIES) as pool:

        def copy(source: Path) -> None:
            with source.open("rb") as whole, (partial / source.name).open("wb") as file:
                while not is_over.is_set() and (block := whole.read(_BLOCK_BYTES)):
                    _check(deadline)
                    file.write(block)

        try:
            list(pool.map(copy, files))
        finally:
            is_over.set()
        if content_hash(files, files[0].parent, with_times=True) != before:
            raise ConfigError(f"{files[0].parent} changed while it was copied")


def _make_room(own: Path, size: int, *, in_memory: bool) -> None:
    """Remove what killed copies left, what was not used for long, then the oldest until it fits.

    Of those that are not so old none is removed where all of them would not be enough.
    """

    def room(more: int = 0) -> int:
        # The half at most: others need the disk, and the job its memory.
        free = shutil.disk_usage(own).free + more
        return min(free, (available_bytes() + more) // 2) if in_memory else free // 2

    # In this order what a killed removal left, a hidden name, goes before the copy of that name.
    copies = sorted(path for path in own.iterdir() if path.is_dir() and not path.is_symlink())
    for path in copies:
        if path.suffix in (".partial", ".old") or path.stat().st_mtime < time.time() - _KEPT_S:
            _remove(path)
    unused = {
        path: sum(each.stat().st_size for each in path.iterdir())
        for path in sorted(filter(Path.exists, copies), key=lambda each: each.stat().st_mtime)
        if _remove(path, only_ask=True)
    }
    for path in unused if size <= room(sum(unused.values())) else ():
        if size > room():
            _remove(path)
    if size > room():
        lying = ", ".join(sorted(path.name for path in own.glob("*-*"))) or "nothing"
        raise ConfigError(
            f"{size / 2**30:.2f} GiB, {room() / 2**30:.2f} GiB of room in {own} (half of what is "
            f"free at most; staged there: {lying})"
        )


def _remove(path: Path, *, only_ask: bool = False) -> bool:
    """Remove a copy that no living process has taken; whether it could be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not only_ask:
            _erase(path)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _erase(path: Path) -> None:
    shutil.rmtree(path.rename(path.with_name(f".{path.name.strip('.')}.old")))


def content_hash(files: Sequence[Path], below: Path, *, with_times: bool = False) -> str:
    """Return a hash of names, sizes, the bytes of small files, and when files were written.

    A manifest, which has the hashes of large ones, is among the small.
    """
    digest = hashlib.sha256()
    for path in files:
        info = path.stat()
        time_ns = f"{info.st_mtime_ns}\0" if with_times else ""
        digest.update(f"{path.relative_to(below)}\0{info.st_size}\0{time_ns}".encode())
        if info.st_size <= WHOLE_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()


def filesystem_of(path: Path) -> str:
    """Return the kind of filesystem that holds `path`: virtiofs, nfs4, tmpfs, ext4."""
    best, found, resolved = "", "unknown", path.resolve()
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount, kind = line.split()[:3]
        if resolved.is_relative_to(mount) and len(mount) >= len(best):
            best, found = mount, kind
    return found
