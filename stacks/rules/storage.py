"""Rules of filesystems, mounts, memory, places, when k8up backs up, and the NFS server that has a
machine of its own beside the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stacks.catalog import GIB, LARGE_FILESYSTEM_GIB, slurmd_amounts
from stacks.errors import Spare
from stacks.machines import MEMORY, VOLUMES, disks, node_groups, paths_of_one_node, shared_mounts
from stacks.rules import Findings
from stacks.rules.naming import is_under, name_problem, path_problem, reserved_problem
from stacks.rules.nodes import check_hardware, check_stripes
from stacks.schedule import CronError, parse_k8up
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.storage import (
    PLACES,
    DiskType,
    FilesystemSpec,
    FilesystemType,
    SubmountSpec,
)

# The tag of a virtiofs device has 36 bytes (virtio 1.2, 5.11.4); ours is jail-submount-<name>.
_SUBMOUNT_NAME_MAX: Final = 36 - len("jail-submount-")
# Recipe, files of 2026-07 to 09: WEKA wants presets of 32 vCPUs or more everywhere.
_WEKA_MIN_VCPUS: Final = 32
# Places that every node must see the same files at.
_SHARED_PLACES: Final = frozenset(PLACES) - {"scratch", "cache"}
# k8up has @annually-random too, but leaves it as it is, and its cron does not know the word:
# k8up-io/k8up operator/handler/randomizer.go, read 2026-11-21.
_K8UP_WORD: Final = re.compile(r"@(hourly|daily|weekly|monthly|yearly)(-random)?|@annually")


def check_storage(spec: StackSpec, findings: Findings) -> None:
    """Filesystem sizes and types, submounts, tmpfs, backups and places."""
    if spec.attached is not None:
        _check_places(spec, findings)
        return
    _check_filesystems(spec, findings)
    for index, submount in enumerate(spec.storage.submounts):
        path = f"storage.submounts[{index}].name"
        problem = name_problem(submount.name, longest=_SUBMOUNT_NAME_MAX)
        findings.add_text("storage.name", path, problem)
        if submount.name in VOLUMES:
            findings.add("storage.name-taken", path)
    _check_mount_paths(spec, findings)
    _check_memory(spec, findings)
    _check_places(spec, findings)


def _check_filesystems(spec: StackSpec, findings: Findings) -> None:
    storage = spec.storage
    for path, filesystem in _filesystems(spec):
        _check_filesystem(filesystem, path, findings, purge=storage.purge_on_destroy)
    first: dict[str, str] = {}
    for path, filesystem in _filesystems(spec):
        if (id_ := filesystem.existing_id) in first:
            findings.add("storage.id-twice", f"{path}.existing_id", first=first[id_])
        elif id_ is not None:
            first[id_] = path
    _check_weka(spec, findings)
    if spec.slurm.accounting and storage.accounting is None:
        findings.add("storage.accounting-missing", "storage.accounting")
    if not spec.slurm.accounting and (unused := storage.accounting) is not None:
        spare = Spare(f"filesystem/{unused.type}", unused.size_gib or 0)
        findings.add("storage.accounting-unused", "storage.accounting", spare=spare)
    if (backup := storage.backup) is not None:
        schedules = {"schedule": backup.schedule, "prune_schedule": backup.prune_schedule}
        for key, text in schedules.items():
            problem = _schedule_problem(text)
            findings.add_text("storage.backup-schedule", f"storage.backup.{key}", problem)
        if storage.purge_on_destroy:
            findings.add("storage.purge-and-backup", "storage.purge_on_destroy")
        jail_gib = storage.jail.size_gib
        if jail_gib is not None and backup.size_gib > jail_gib:
            unused_gib = backup.keep_daily * (backup.size_gib - jail_gib)
            spare = Spare("object-storage/standard", unused_gib)
            findings.add("storage.backup-size", "storage.backup.size_gib", spare=spare)


def _filesystems(spec: StackSpec) -> Iterator[tuple[str, FilesystemSpec | SubmountSpec]]:
    storage = spec.storage
    yield "storage.jail", storage.jail
    yield "storage.controller_spool", storage.controller_spool
    if storage.accounting is not None:
        yield "storage.accounting", storage.accounting
    for index, submount in enumerate(storage.submounts):
        yield f"storage.submounts[{index}]", submount


def _check_filesystem(
    filesystem: FilesystemSpec | SubmountSpec, path: str, findings: Findings, *, purge: bool
) -> None:
    size_gib, existing_id = filesystem.size_gib, filesystem.existing_id
    if (size_gib is None) == (existing_id is None):
        got = "both" if size_gib is not None else "neither"
        findings.add("storage.size-or-id", path, got=got)
    if existing_id is not None and not existing_id.startswith("computefilesystem-"):
        findings.add("storage.id", f"{path}.existing_id")
    if size_gib is not None and size_gib > LARGE_FILESYSTEM_GIB:
        findings.add("storage.large", f"{path}.size_gib", most=LARGE_FILESYSTEM_GIB)
    if filesystem.forbid_deletion and existing_id is not None:
        findings.add("storage.forbid-existing", f"{path}.forbid_deletion")
    elif filesystem.forbid_deletion and purge:
        findings.add("storage.forbid-and-purge", f"{path}.forbid_deletion")


def _check_weka(spec: StackSpec, findings: Findings) -> None:
    weka = [path for path, each in _filesystems(spec) if each.type is FilesystemType.WEKA]
    if len(weka) > 1:
        findings.add("storage.weka-one", "storage", count=len(weka), weka=weka)
    small: list[str] = []
    for _, path, group in node_groups(spec) if weka else ():
        preset = group.hardware
        if preset is not None and preset.vcpus < _WEKA_MIN_VCPUS:
            small.append(f"{path} {preset.vcpus}")
    if small:
        findings.add("storage.weka-vcpus", f"{weka[0]}.type", least=_WEKA_MIN_VCPUS, small=small)


def _check_mount_paths(spec: StackSpec, findings: Findings) -> None:
    mounts = [
        (f"storage.submounts[{index}].mount_path", submount.mount_path)
        for index, submount in enumerate(spec.storage.submounts)
    ]
    if spec.storage.memory is not None:
        mounts.append(("storage.memory.mount_path", spec.storage.memory.mount_path))
    if spec.nfs is not None:
        mounts.append(("nfs.mount_path", spec.nfs.mount_path))
    findings.unique("storage.name-twice", "storage.submounts", spec.storage.submounts, key="name")
    for index, (key, path) in enumerate(mounts):
        if findings.add_text("storage.path-form", key, path_problem(path)):
            continue
        if path == "/":
            findings.add("storage.path-root", key)
            continue
        problem = reserved_problem(path)
        if problem and path == MEMORY and key == "storage.memory.mount_path":
            problem += ", or remove storage.memory: Soperator's own is there in any case"
        findings.add_text("storage.path-reserved", key, problem)
        for other_index, (other_key, other) in enumerate(mounts):
            if path == other and other_index < index:
                findings.add("storage.path-twice", key, other_key=other_key)
            elif path != other and other != "/" and is_under(path, other):
                findings.add("storage.path-nested", key, other=other, other_key=other_key)


def _check_memory(spec: StackSpec, findings: Findings) -> None:
    memory, sssd = spec.storage.memory, spec.soperator.sssd is not None
    memory_gib = 0 if memory is None else memory.size_gib
    for index, worker in enumerate(spec.nodes.workers):
        preset = worker.hardware
        if preset is None:
            continue
        if memory_gib >= preset.memory_gib:
            findings.add("storage.memory-size", "storage.memory.size_gib", worker=worker)
        elif memory_gib + worker.shared_memory_gib > preset.memory_gib:
            path = f"nodes.workers[{index}].shared_memory_gib"
            findings.add("storage.memory-both", path, memory_gib=memory_gib)
        slurmd = slurmd_amounts(preset, worker.boot_disk.size_gib, sssd=sssd)
        asked_gib, left_gib = slurmd.memory_mib // GIB, preset.memory_gib - memory_gib
        if memory_gib < preset.memory_gib and left_gib < asked_gib:
            findings.add(
                "storage.memory-drains",
                "storage.memory.size_gib",
                left=left_gib,
                worker=worker,
                asked=asked_gib,
                most=preset.memory_gib - asked_gib,
                folder=MEMORY,
            )


def _check_places(spec: StackSpec, findings: Findings) -> None:
    places, own = spec.storage.places, paths_of_one_node(spec)
    mounts, jail = [*shared_mounts(spec).values()], spec.storage.jail
    for place in PLACES:
        if place not in places:
            findings.add("storage.place-missing", f"storage.places.{place}", known=PLACES)
    for place, path in places.items():
        key = f"storage.places.{place}"
        if place not in PLACES:
            findings.add("storage.place-unknown", key, known=PLACES)
        if findings.add_text("storage.place-form", key, path_problem(path)):
            continue
        if lies_on := [text for mount, text in own.items() if is_under(path, mount)]:
            if place in _SHARED_PLACES:
                findings.add("storage.place-on-one-node", key, path=path, lies_on=lies_on)
        elif spec.attached is None and not any(is_under(path, mount) for mount in mounts):
            findings.add(
                "storage.place-on-jail",
                key,
                path=path,
                mounts=mounts,
                size=jail.existing_id or f"{jail.size_gib} GiB",
            )


def _schedule_problem(text: str) -> str | None:
    """What is wrong with a schedule and what to give instead; None for one that is right."""
    if _K8UP_WORD.fullmatch(text):
        return None
    try:
        parse_k8up(text)
    except CronError as error:
        return str(error)
    return None


def check_nfs(spec: StackSpec, findings: Findings) -> None:
    """The machine, its disks, and that nothing else serves the same path."""
    nfs = spec.nfs
    if nfs is None:
        return
    check_hardware(spec.nebius.region, "nfs", nfs, findings)
    check_stripes(disks(nfs, "nfs"), findings)
    if spec.soperator.nfs_home is not None:
        findings.add("nfs.home-twice", "nfs")
    if nfs.billing is not Billing.ON_DEMAND:
        findings.add("nfs.billing", "nfs.billing")
    if nfs.gpus:
        findings.add("nfs.gpus", "nfs.platform")
    if nfs.data_disks.type is DiskType.NETWORK_SSD_NON_REPLICATED:
        findings.add("nfs.one-copy", "nfs.data_disks.type")
    if spec.nodes.nfs is not None and spec.soperator.nfs_home is None:
        findings.add("nfs.node-group", "nodes.nfs")
