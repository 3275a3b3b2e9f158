"""Which declared changes leave a filesystem or delete its data: lost_filesystems(before, after).

Both sides are values of declared.py, so that the old one may come from an output of a deployment. A
filesystem leaves the stack when its declaration goes, and is made anew when its type (immutable in
nebius.compute.v1.FilesystemSpec) or its project changes. Its data is deleted where the deployment
has storage.purge_on_destroy; else it is kept: docs/storage.md. A new size is an update in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

KEYS: Final = (
    "storage.jail",
    "storage.controller_spool",
    "storage.accounting",
    "storage.submounts",
    "storage.purge_on_destroy",
    "nebius.project_id",
)
"""Config keys that are looked at."""
_FIXED: Final = {
    "storage.jail": "/",
    "storage.controller_spool": "the state of Slurm's controller",
    "storage.accounting": "the accounting database",
}
_SUBMOUNT: Final = "storage.submounts["


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFilesystem:
    """One filesystem that a change takes out of the stack."""

    key: str
    """Config key whose change does it."""
    change: str
    """What happens to the value, such as `network-ssd -> network-hdd`."""
    mount: str
    """Path in the jail, or what it holds where it has none."""
    size_gib: str
    is_replaced: bool
    """Whether an empty one takes its place."""
    is_kept: bool
    """Whether it stays in the project with its data."""

    def __str__(self) -> str:
        what = f"{self.key}: {self.change}: the filesystem at {self.mount} ({self.size_gib} GiB)"
        if self.is_kept and self.key.endswith(".type"):
            return f"{what} cannot change its type, so `up` will refuse it; take the type back"
        if self.is_kept:
            return f"{what} stays in its project and is paid for: soperator leftovers"
        fate = "replaced by an empty one" if self.is_replaced else "deleted"
        return f"DATA LOSS: {what} is {fate}; ALL DATA ON IT IS LOST. Copy it away first."


def lost_filesystems(
    before: Mapping[str, str], after: Mapping[str, str]
) -> tuple[LostFilesystem, ...]:
    """Filesystems that the change takes out, in the order of the old declaration."""
    found: list[LostFilesystem] = []
    kept = _made(after)
    for key in _made(before):
        if key not in kept:
            adopted = after.get(f"{key}.existing_id")
            lost = (key, "removed") if adopted is None else (f"{key}.existing_id", f"now {adopted}")
            found.append(_lost(before, key, *lost, is_replaced=adopted is not None))
            continue
        for watched in (f"{key}.type", "nebius.project_id"):
            old, new = before.get(watched), after.get(watched)
            if old != new:
                found.append(_lost(before, key, watched, f"{old} -> {new}", is_replaced=True))
                break
    return tuple(found)


def _made(values: Mapping[str, str]) -> tuple[str, ...]:
    """Declarations of filesystems that the program makes; one with an existing id it does not."""
    ending = ".size_gib"
    return tuple(
        name.removesuffix(ending)
        for name in values
        if name.endswith(ending)
        and (name.removesuffix(ending) in _FIXED or name.startswith(_SUBMOUNT))
    )


def _lost(
    before: Mapping[str, str], key: str, cause: str, change: str, *, is_replaced: bool
) -> LostFilesystem:
    return LostFilesystem(
        key=cause,
        change=change,
        mount=_FIXED.get(key) or before.get(f"{key}.mount_path", key),
        size_gib=before[f"{key}.size_gib"],
        is_replaced=is_replaced,
        is_kept=before.get("storage.purge_on_destroy") == "false",
    )
