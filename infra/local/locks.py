"""Locks in Pulumi's file backend: who holds a stack, and what a killed engine left.

`pulumi cancel` is no help here: it takes the lock of a living engine too, and it needs the stack,
while an engine killed in `pulumi stack init` leaves a lock and no stack.
"""

from __future__ import annotations

import json
from pathlib import Path

_ATTRIBUTES = ".attrs"  # a file beside each of the backend's own


def holders(backend: Path, stack: str) -> list[int]:
    """Process ids of the living engines that have the stack locked."""
    return [pid for pid in _locks(backend, stack).values() if _is_pulumi(pid)]


def clear_dead(backend: Path, stack: str) -> bool:
    """Removes the locks of engines that are no more; whether there was one."""
    dead = [path for path, pid in _locks(backend, stack).items() if not _is_pulumi(pid)]
    for path in dead:
        path.unlink(missing_ok=True)
        path.with_name(path.name + _ATTRIBUTES).unlink(missing_ok=True)
    if dead:
        _drop_cut_attributes(backend, stack)
    return bool(dead)


def _drop_cut_attributes(backend: Path, stack: str) -> None:
    """Removes attributes of the state that the kill cut: with them the engine reads it no more.

    It truncates and rewrites them before each write of the state (gocloud.dev v0.37.0,
    blob/fileblob/attrs.go, setAttrs), and does without where the file is absent.
    """
    for path in (backend / ".pulumi" / "stacks").glob(f"**/{stack}.json*{_ATTRIBUTES}"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            path.unlink()


def _locks(backend: Path, stack: str) -> dict[Path, int]:
    """Lock files of the stack, each with the process id in it."""
    pids: dict[Path, int] = {}
    for path in (backend / ".pulumi" / "locks").glob(f"**/{stack}/*.json"):
        try:
            pids[path] = int(json.loads(path.read_text(encoding="utf-8"))["pid"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError):
            pids[path] = 0  # no engine's: it renames a whole file to this name
    return pids


def _is_pulumi(pid: int) -> bool:
    # Its name, which everybody may read, not its program: the engine may be another user's.
    try:
        return pid > 0 and Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except OSError:
        return False
