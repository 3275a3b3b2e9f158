"""Which declared changes leave storage or delete its data: lost_storage(before, after).

Both sides are values of declared.py, so that the old one may come from an output of a deployment. A
filesystem, bucket or registry leaves the stack when its declaration goes, and is made anew when its
type (immutable in nebius.compute.v1.FilesystemSpec) or its project changes. Its data is deleted
where the deployment has storage.purge_on_destroy; else it is kept: docs/storage.md. So it is with
the data disks of an NFS server. A new size is an update in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

KEYS: Final = (
    "storage.jail",
    "storage.controller_spool",
    "storage.accounting",
    "storage.submounts",
    "storage.backup",
    "storage.config_bucket_gib",
    "storage.registry_gib",
    "storage.purge_on_destroy",
    "nfs",
    "nebius.project_id",
)
"""Config keys that are looked at."""
_FIXED: Final = {
    "storage.jail": "/",
    "storage.controller_spool": "the state of Slurm's controller",
    "storage.accounting": "the accounting database",
}
_PROJECT: Final = "nebius.project_id"
_PASSWORDS: Final = (
    "Its passwords go with the state, and no copy opens without them; keep them first: "
    "pulumi stack output backup_password --show-secrets"
)
_SUBMOUNT: Final = "storage.submounts["
_BACKUP: Final = "storage.backup"
_NFS: Final = "nfs.data_disks"
_OBJECTS: Final = {
    _BACKUP: ("storage.backup.size_gib", "the bucket of the jail's backups"),
    "storage.config_bucket_gib": ("storage.config_bucket_gib", "the bucket of run configs"),
    "storage.registry_gib": ("storage.registry_gib", "the registry of container images"),
}
"""Declaration -> a value that it has while it is there, and what it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostStorage:
    """One filesystem, bucket, registry or array that a change takes out of the stack."""

    key: str
    """Config key whose change does it."""
    change: str
    """What happens to the value, such as `network-ssd -> network-hdd`."""
    what: str
    """What it is and what it holds, with its size where it has one."""
    is_replaced: bool
    """Whether an empty one takes its place."""
    is_kept: bool
    """Whether it stays in the project with its data."""

    def __str__(self) -> str:
        what = f"{self.key}: {self.change}: {self.what}"
        if self.key == f"{_NFS}.count":
            return f"{what} lies on one array, which no other count can mount; take the count back"
        if self.is_kept and self.key.endswith(".type"):
            return f"{what} cannot change its type, so `up` will refuse it; take the type back"
        if self.is_kept:
            paid = f"{what} stays in its project and is paid for: soperator leftovers"
            return paid if self.key != _BACKUP else f"{paid}. {_PASSWORDS}"
        fate = "replaced by an empty one" if self.is_replaced else "deleted"
        return f"DATA LOSS: {what} is {fate}; ALL DATA ON IT IS LOST. Copy it away first."


def lost_storage(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[LostStorage, ...]:
    """What the change takes out, filesystems first, in the order of the old declaration."""
    found: list[LostStorage] = []
    kept = _made(after)
    for key in _made(before):
        if key not in kept:
            adopted = after.get(f"{key}.existing_id")
            lost = (key, "removed") if adopted is None else (f"{key}.existing_id", f"now {adopted}")
            found.append(_filesystem(before, key, *lost, is_replaced=adopted is not None))
            continue
        for watched in (f"{key}.type", _PROJECT):
            old, new = before.get(watched), after.get(watched)
            if old != new:
                change = f"{old} -> {new}"
                found.append(_filesystem(before, key, watched, change, is_replaced=True))
                break
    found += _nfs(before, after)
    moved = before.get(_PROJECT) != after.get(_PROJECT)
    for key, (there, what) in _OBJECTS.items():
        if there not in before:
            continue
        if there not in after:
            found.append(_lost(before, key, "removed", what, is_replaced=False))
        elif moved:
            change = f"{before.get(_PROJECT)} -> {after.get(_PROJECT)}"
            found.append(_lost(before, _PROJECT, change, what, is_replaced=True))
    return tuple(found)


def _nfs(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[LostStorage]:
    """The first change of the server's data disks that takes them away."""
    size_gib = before.get(f"{_NFS}.size_gib")
    if size_gib is None:
        return
    count, mount = before.get(f"{_NFS}.count"), before.get("nfs.mount_path")
    what = f"the data of the NFS server at {mount} ({count} x {size_gib} GiB)"
    if f"{_NFS}.size_gib" not in after:
        yield _lost(before, "nfs", "removed", what, is_replaced=False)
        return
    for watched in (f"{_NFS}.type", f"{_NFS}.count", _PROJECT):
        old, new = before.get(watched), after.get(watched)
        if old != new:
            yield _lost(before, watched, f"{old} -> {new}", what, is_replaced=True)
            return


def _made(values: Mapping[str, str]) -> tuple[str, ...]:
    """Declarations of filesystems that the program makes; one with an existing id it does not."""
    ending = ".size_gib"
    return tuple(
        name.removesuffix(ending)
        for name in values
        if name.endswith(ending)
        and (name.removesuffix(ending) in _FIXED or name.startswith(_SUBMOUNT))
    )


def _filesystem(
    before: Mapping[str, str], key: str, cause: str, change: str, *, is_replaced: bool
) -> LostStorage:
    mount = _FIXED.get(key) or before.get(f"{key}.mount_path", key)
    what = f"the filesystem at {mount} ({before[f'{key}.size_gib']} GiB)"
    return _lost(before, cause, change, what, is_replaced=is_replaced)


def _lost(
    before: Mapping[str, str], cause: str, change: str, what: str, *, is_replaced: bool
) -> LostStorage:
    return LostStorage(
        key=cause,
        change=change,
        what=what,
        is_replaced=is_replaced,
        is_kept=before.get("storage.purge_on_destroy") == "false",
    )
