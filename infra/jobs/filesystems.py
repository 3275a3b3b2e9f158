"""How full the filesystems of a cluster are, as its login node sees them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell

_COLUMNS: Final = "fstype,size,used,avail"
NEARLY_FULL_PERCENT: Final = 90


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    """One mounted path; every size is None where the login node does not have it."""

    path: str
    what: str
    """What the stack declares behind the path."""
    kind: str | None
    size_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None

    @property
    def used_percent(self) -> float | None:
        """Share of what its users may write, as df counts it."""
        if self.used_bytes is None or self.free_bytes is None:
            return None
        whole = self.used_bytes + self.free_bytes
        return 100 * self.used_bytes / whole if whole else None

    @property
    def nearly_full(self) -> bool:
        return (self.used_percent or 0) >= NEARLY_FULL_PERCENT


def usage(shell: Shell, mounts: Mapping[str, str]) -> tuple[Filesystem, ...]:
    """The declared paths (path -> what is behind it) in order; one round trip."""
    if not mounts:
        return ()
    # Each path by itself: df ends with 1 when one of several is on the workers only.
    script = "".join(
        f"echo {shlex.quote(path)}; "
        f"df --block-size=1 --output={_COLUMNS} {shlex.quote(path)} 2>/dev/null | tail -n +2; "
        for path in mounts
    )
    result = shell.run(f"{script} true")
    if not result.ok:
        raise JobsError(f"df: exit {result.exit_code}: {result.stderr.strip() or 'no message'}")
    found: dict[str, list[str]] = {}
    path = ""
    for line in result.stdout.splitlines():
        if line in mounts:
            path = line
        elif line.strip():
            found[path] = line.split()
    return tuple(_filesystem(path, what, found.get(path)) for path, what in mounts.items())


def _filesystem(path: str, what: str, fields: list[str] | None) -> Filesystem:
    if fields is None:
        return Filesystem(
            path=path, what=what, kind=None, size_bytes=None, used_bytes=None, free_bytes=None
        )
    try:
        kind, size, used, free = fields
        return Filesystem(
            path=path,
            what=what,
            kind=kind,
            size_bytes=int(size),
            used_bytes=int(used),
            free_bytes=int(free),
        )
    except ValueError as error:
        raise JobsError(f"df {path}: printed {fields!r}, which is not {_COLUMNS}") from error
