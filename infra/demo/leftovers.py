"""Proves that the embedded cloud is gone: no process, mount or file outside the state folder.

Owns what is looked at: `remember` before anything is made, `find` when everything is down.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from infra import whole_file
from infra.local.process import MARK
from infra.local.slurm.pod import marker

_WATCHED = ("/", "/home", "/mnt", "/opt", "/run", "/srv", "/var/spool")
"""Folders in which a stack that escaped its namespace would show: declared mounts and daemons."""
_OF_THE_SYSTEM = frozenset({"/run/mount"})
"""What mount(8) makes for itself at its first use on a machine, such as a fresh container."""


def remember(path: Path) -> None:
    """Writes down what the watched folders hold, unless an earlier run that was killed did."""
    if path.exists():
        return
    whole_file.write(path, json.dumps(_listing()))


def find(state: Path, before: Path) -> list[str]:
    """What is left, one line each; empty when nothing is."""
    return [*_processes(state), *_mounts(state), *_files(state, before)]


def _processes(state: Path) -> list[str]:
    """Processes of the embedded cloud and of the emulator of previews, and what works in there."""
    marks = tuple(f"{state / part}/" for part in ("local", "offline"))
    ours = f"{MARK}={state.resolve()}/".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            where = str((folder / "cwd").readlink())
            started_by_us = ours in (folder / "environ").read_bytes()
        except OSError:
            continue
        in_there = started_by_us or any(mark in f"{command} {where}/" for mark in marks)
        if int(folder.name) != os.getpid() and in_there:
            found.append(f"process {folder.name}: {command[:80].strip()}")
    return found


def _mounts(state: Path) -> list[str]:
    """Mounts of the state folder and roots of its pods, in the namespace of any process."""
    marks = (f"{state}/local/", marker(state / "local" / "slurm"))
    found: dict[str, str] = {}
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if any(mark in line for mark in marks):
                found.setdefault(line.split()[4], f"mount {line.split()[4]} of {path.parent.name}")
    return sorted(found.values())


def _files(state: Path, before: Path) -> list[str]:
    try:
        known = json.loads(before.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [
        f"file {Path(folder) / name}"
        for folder, names in _listing().items()
        for name in sorted(set(names) - set(known.get(folder, [])))
        if not Path(folder, name).is_relative_to(state)
        and str(Path(folder, name)) not in _OF_THE_SYSTEM
    ]


def _listing() -> dict[str, list[str]]:
    return {
        folder: sorted(path.name for path in Path(folder).iterdir())
        for folder in _WATCHED
        if Path(folder).is_dir()
    }
