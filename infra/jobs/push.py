"""Brings a local file or folder to a place of the cluster over one SSH connection.

Owns what crosses it: files that are not there yet, in pieces that a second run continues, each
checked by its SHA-256 before it gets its name. The other end needs a POSIX shell and coreutils.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell
from infra.render.job_mounts import in_memory

_PIECE_BYTES = 16 << 20
# A part's name holds its content's hash, so that pieces of two versions are never joined.
_LIST = r"""
set -eu
mkdir -p {folder}
cd {folder}
df -B1 --output=avail . | tail -n 1
find . -type f -printf '%s %P\n'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What one push did."""

    num_files: int
    num_sent: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    local: Path
    name: str
    size_bytes: int
    sha256: str

    @property
    def part(self) -> str:
        path = PurePosixPath(self.name)
        return str(path.with_name(f".{path.name}.{self.sha256[:16]}.part"))


def destination(places: Mapping[str, str], target: str, *, name: str) -> str:
    """The absolute path that `<place>[/path]` names; without a path it is `name` in the place."""
    place, _, rest = target.partition("/")
    if place not in places:
        raise JobsError(
            f"{target}: {place!r} is no place of this stack; places are: {', '.join(places)}"
        )
    if in_memory(places[place]):
        raise JobsError(
            f"{target}: {places[place]} is the memory of the login node there, which no worker "
            "sees; push to a shared place, such as data"
        )
    path = PurePosixPath(rest or name)
    if path.is_absolute() or ".." in path.parts:
        raise JobsError(f"{target}: the path after the place stays inside it, without '..'")
    return str(PurePosixPath(places[place]) / path)


def push(
    shell: Shell, source: Path, target: str, *, say: Callable[[str], None], dry_run: bool = False
) -> Pushed:
    """Makes the absolute path `target` on the cluster equal to `source`; extra files stay."""
    files = _files(source)
    folder = target if source.is_dir() else str(PurePosixPath(target).parent)
    if source.is_file():
        files = [_renamed(files[0], PurePosixPath(target).name)]
    total = sum(file.size_bytes for file in files)
    say(f"{source}: {len(files)} files, {total / 2**30:.2f} GiB to {target}")
    if dry_run:
        return Pushed(num_files=len(files), num_sent=0, sent_bytes=0)
    free, sizes = _listing(shell, folder)
    present = _present(shell, folder, [f for f in files if sizes.get(f.name) == f.size_bytes])
    missing = [file for file in files if present.get(file.name) != file.sha256]
    needed = sum(file.size_bytes - sizes.get(file.part, 0) for file in missing)
    if needed > free:
        raise JobsError(
            f"{folder}: {free / 2**30:.2f} GiB free, {needed / 2**30:.2f} GiB to send; "
            "enlarge the filesystem or remove data"
        )
    for file in missing:
        _send(shell, folder, file, have=sizes.get(file.part, 0), say=say)
    return Pushed(num_files=len(files), num_sent=len(missing), sent_bytes=needed)


def _files(source: Path) -> list[_File]:
    if source.is_file():
        paths = [source]
    elif source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file())
    else:
        raise JobsError(f"{source}: no such file or folder here")
    if not paths:
        raise JobsError(f"{source}: has no file, so there is nothing to push")
    files: list[_File] = []
    for path in paths:
        name = path.name if path == source else path.relative_to(source).as_posix()
        if "\n" in name:
            raise JobsError(f"{path!r}: the name holds a line break; rename it")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        files.append(_File(local=path, name=name, size_bytes=path.stat().st_size, sha256=digest))
    return files


def _renamed(file: _File, name: str) -> _File:
    return _File(local=file.local, name=name, size_bytes=file.size_bytes, sha256=file.sha256)


def _listing(shell: Shell, folder: str) -> tuple[int, dict[str, int]]:
    """Free bytes, and the size of every file that is there already."""
    free, *lines = _run(shell, _LIST.format(folder=shlex.quote(folder))).splitlines()
    pairs = (line.split(" ", 1) for line in lines)
    return int(free), {name: int(size) for size, name in pairs}


def _present(shell: Shell, folder: str, files: list[_File]) -> dict[str, str]:
    """SHA-256 of those files on the cluster."""
    if not files:
        return {}
    names = "\0".join(f"./{file.name}" for file in files).encode()
    text = _run(shell, f"cd {shlex.quote(folder)} && xargs -0 sha256sum --zero --", stdin=names)
    pairs = (line.split(None, 1) for line in text.split("\0") if line)
    return {name.removeprefix("./"): digest for digest, name in pairs}


def _send(shell: Shell, folder: str, file: _File, *, have: int, say: Callable[[str], None]) -> None:
    part, final = (shlex.quote(str(PurePosixPath(folder) / n)) for n in (file.part, file.name))
    if have:
        say(f"{file.name}: continued at {have} of {file.size_bytes} bytes")
    else:
        _run(shell, f'mkdir -p -- "$(dirname -- {part})" && : > {part}')
    with file.local.open("rb") as source:
        source.seek(have)
        while piece := source.read(_PIECE_BYTES):
            _run(shell, f"cat >> {part}", stdin=piece)
    digest = _run(shell, f"sha256sum -- {part}").split()[0].removeprefix("\\")
    if digest != file.sha256:
        _run(shell, f"rm -f -- {part}")
        raise JobsError(
            f"{file.name}: arrived with another hash and was removed; is it being written here? "
            "Push it again"
        )
    _run(shell, f"sync -- {part} && mv -fT -- {part} {final}")


def _run(shell: Shell, command: str, *, stdin: bytes = b"") -> str:
    result = shell.run(command, stdin=stdin)
    if not result.ok:
        reason = result.stderr.strip() or f"exit {result.exit_code}"
        raise JobsError(f"push: {reason}; look at owner and free space, then push again")
    return result.stdout
