"""Rules of filesystems, mounts, memory, places, when k8up backs up, and the NFS server that has a
machine of its own beside the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from stacks.catalog import GIB, LARGE_FILESYSTEM_GIB, slurmd_amounts
from stacks.errors import SpareGib
from stacks.machines import MEMORY, VOLUMES, node_groups, paths_of_one_node, shared_mounts
from stacks.rules import Findings
from stacks.rules.naming import is_under, name_problem, path_problem, reserved_problem
from stacks.rules.nodes import check_hardware
from stacks.rules.workers import check_stripes
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
_K8UP_FIELD: Final = re.compile(r"[0-9A-Za-z*/,-]+")
# Of k8up's cron: https://pkg.go.dev/github.com/robfig/cron/v3, read 2026-11-21.
_K8UP_FIELDS: Final = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of month", 1, 31),
    ("month", 1, 12),
    ("day of week", 0, 6),
)


def check_storage(spec: StackSpec, findings: Findings) -> None:
    """Filesystem sizes and types, submounts, tmpfs, backups and places."""
    if spec.attached is not None:
        _check_places(spec, findings)
        return
    _check_filesystems(spec, findings)
    for index, submount in enumerate(spec.storage.submounts):
        path = f"storage.submounts[{index}].name"
        findings.add("storage.name", path, name_problem(submount.name, longest=_SUBMOUNT_NAME_MAX))
        if submount.name in VOLUMES:
            problem = (
                f"'{submount.name}' is the name of a volume that each pod has already; choose "
                "another"
            )
            findings.add("storage.name-taken", path, problem)
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
            problem = f"'{id_}' is used twice, first by {first[id_]}; one filesystem has one mount"
            findings.add("storage.id-twice", f"{path}.existing_id", problem)
        elif id_ is not None:
            first[id_] = path
    _check_weka(spec, findings)
    if spec.slurm.accounting and storage.accounting is None:
        problem = (
            "missing, but slurm.accounting is true; give size_gib or set slurm.accounting to false"
        )
        findings.add("storage.accounting-missing", "storage.accounting", problem)
    if not spec.slurm.accounting and storage.accounting is not None:
        findings.add(
            "storage.accounting-unused",
            "storage.accounting",
            "paid for and unused: slurm.accounting is false",
            spare_gib=SpareGib(
                sku=f"filesystem/{storage.accounting.type}", count=storage.accounting.size_gib or 0
            ),
        )
    if (backup := storage.backup) is not None:
        schedules = {"schedule": backup.schedule, "prune_schedule": backup.prune_schedule}
        for key, text in schedules.items():
            problem = _schedule_problem(text)
            findings.add("storage.backup-schedule", f"storage.backup.{key}", problem)
        if storage.purge_on_destroy:
            problem = (
                "true, so destroy deletes the bucket of the jail's backups with the jail, and no "
                "copy is left; set it to false, or copy the bucket away before a destroy"
            )
            findings.add("storage.purge-and-backup", "storage.purge_on_destroy", problem)
    jail_gib = storage.jail.size_gib
    if storage.backup is not None and jail_gib is not None and storage.backup.size_gib > jail_gib:
        findings.add(
            "storage.backup-size",
            "storage.backup.size_gib",
            f"{storage.backup.size_gib} GiB a copy, but the jail has {jail_gib} GiB; write "
            f"{jail_gib} or less",
            spare_gib=SpareGib(
                sku="object-storage/standard",
                count=storage.backup.keep_daily * (storage.backup.size_gib - jail_gib),
            ),
        )


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
        problem = (
            f"has {got} of size_gib and existing_id; give size_gib for a new filesystem "
            "or existing_id for one that exists"
        )
        findings.add("storage.size-or-id", path, problem)
    if existing_id is not None and not existing_id.startswith("computefilesystem-"):
        problem = f"'{existing_id}' is no filesystem id; it starts with 'computefilesystem-'"
        findings.add("storage.id", f"{path}.existing_id", problem)
    if size_gib is not None and size_gib > LARGE_FILESYSTEM_GIB:
        problem = f"{size_gib} GiB: over {LARGE_FILESYSTEM_GIB} GiB needs Nebius support first"
        findings.add("storage.large", f"{path}.size_gib", problem)
    if filesystem.forbid_deletion and existing_id is not None:
        problem = (
            "true, but the stack does not change a filesystem that it has by existing_id; "
            "remove it and set it on the filesystem itself"
        )
        findings.add("storage.forbid-existing", f"{path}.forbid_deletion", problem)
    elif filesystem.forbid_deletion and purge:
        problem = (
            "true, but storage.purge_on_destroy is true too, so destroy would be refused half-way; "
            "set one of them to false"
        )
        findings.add("storage.forbid-and-purge", f"{path}.forbid_deletion", problem)


def _check_weka(spec: StackSpec, findings: Findings) -> None:
    weka = [path for path, each in _filesystems(spec) if each.type is FilesystemType.WEKA]
    if len(weka) > 1:
        problem = (
            f"{len(weka)} filesystems of type weka ({', '.join(weka)}); a cluster can have one"
        )
        findings.add("storage.weka-one", "storage", problem)
    small: list[str] = []
    for _, path, group in node_groups(spec) if weka else ():
        preset = group.hardware
        if preset is not None and preset.vcpus < _WEKA_MIN_VCPUS:
            small.append(f"{path} {preset.vcpus}")
    if small:
        problem = (
            f"the client of weka wants nodes of {_WEKA_MIN_VCPUS} vCPUs or more, but there are "
            f"{', '.join(small)}; choose larger presets or network-ssd"
        )
        findings.add("storage.weka-vcpus", f"{weka[0]}.type", problem)


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
        if findings.add("storage.path-form", key, path_problem(path)):
            continue
        if path == "/":
            problem = "'/' is the jail itself; choose a directory in it"
            findings.add("storage.path-root", key, problem)
            continue
        problem = reserved_problem(path)
        if problem and path == MEMORY and key == "storage.memory.mount_path":
            problem += ", or remove storage.memory: Soperator's own is there in any case"
        findings.add("storage.path-reserved", key, problem)
        for other_index, (other_key, other) in enumerate(mounts):
            if path == other and other_index < index:
                problem = f"'{path}' is already the path of {other_key}"
                findings.add("storage.path-twice", key, problem)
            elif path != other and other != "/" and is_under(path, other):
                problem = (
                    f"'{path}' lies inside '{other}' of {other_key}; a mount inside a mount can be "
                    "hidden by it; put them side by side"
                )
                findings.add("storage.path-nested", key, problem)


def _check_memory(spec: StackSpec, findings: Findings) -> None:
    memory = spec.storage.memory
    memory_gib = 0 if memory is None else memory.size_gib
    for index, worker in enumerate(spec.nodes.workers):
        preset = worker.hardware
        if preset is None:
            continue
        if memory_gib >= preset.memory_gib:
            problem = (
                f"{memory_gib} GiB is more than a '{worker.name}' node has "
                f"({preset.memory_gib} GiB); write less, or take a preset with more memory"
            )
            findings.add("storage.memory-size", "storage.memory.size_gib", problem)
        elif memory_gib + worker.shared_memory_gib > preset.memory_gib:
            findings.add(
                "storage.memory-both",
                f"nodes.workers[{index}].shared_memory_gib",
                f"{worker.shared_memory_gib} GiB and {memory_gib} GiB of storage.memory are more "
                f"than the node has ({preset.memory_gib} GiB); filling both kills the job; lower "
                "one, together below what the node has",
            )
        slurmd = slurmd_amounts(
            preset, worker.boot_disk.size_gib, sssd=spec.soperator.sssd is not None
        )
        asked_gib, left_gib = slurmd.memory_mib // GIB, preset.memory_gib - memory_gib
        if memory_gib < preset.memory_gib and left_gib < asked_gib:
            problem = (
                f"{memory_gib} GiB: files stay there when a job ends, and a full RAM disk "
                f"leaves {left_gib} GiB of a '{worker.name}' node, so the next job that asks for "
                f"all {asked_gib} GiB drains it (Soperator's prolog, alloc_mem_used); use "
                f"{preset.memory_gib - asked_gib} or less, or the job's folder in {MEMORY}"
            )
            findings.add("storage.memory-drains", "storage.memory.size_gib", problem)


def _check_places(spec: StackSpec, findings: Findings) -> None:
    places, own = spec.storage.places, paths_of_one_node(spec)
    mounts, jail = [*shared_mounts(spec).values()], spec.storage.jail
    for place in PLACES:
        if place not in places:
            problem = f"missing; recipes name all of: {', '.join(PLACES)}"
            findings.add("storage.place-missing", f"storage.places.{place}", problem)
    for place, path in places.items():
        key = f"storage.places.{place}"
        if place not in PLACES:
            problem = f"unknown place; places are: {', '.join(PLACES)}"
            findings.add("storage.place-unknown", key, problem)
        if findings.add("storage.place-form", key, path_problem(path)):
            continue
        if lies_on := [text for mount, text in own.items() if is_under(path, mount)]:
            if place in _SHARED_PLACES:
                problem = (
                    f"'{path}' is on {lies_on[0]}, where other nodes do not see it; put it under "
                    "a submount"
                )
                findings.add("storage.place-on-one-node", key, problem)
        elif spec.attached is None and not any(is_under(path, mount) for mount in mounts):
            problem = (
                f"'{path}' is under no declared mount ({', '.join(mounts)}), so it fills the jail "
                f"({jail.existing_id or f'{jail.size_gib} GiB'})"
            )
            findings.add("storage.place-on-jail", key, problem)


def _schedule_problem(text: str) -> str | None:
    """What is wrong with a schedule and what to give instead; None for one that is right."""
    if _K8UP_WORD.fullmatch(text):
        return None
    parts = text.split(" ")
    if len(parts) != len(_K8UP_FIELDS) or not all(_K8UP_FIELD.fullmatch(part) for part in parts):
        return (
            f"'{text}' is no schedule; give five fields of cron, or @hourly, @daily, @weekly, "
            "@monthly or @yearly, with -random to spread the load"
        )
    for part, (name, first, last) in zip(parts, _K8UP_FIELDS, strict=True):
        for item in part.split(","):
            bounds = item.partition("/")[0].split("-")
            if any(end.isdigit() and not first <= int(end) <= last for end in bounds):
                return f"'{text}': '{item}' is no {name}; cron takes {first} to {last}"
    return None


def check_nfs(spec: StackSpec, findings: Findings) -> None:
    """The machine, its disks, and that nothing else serves the same path."""
    nfs = spec.nfs
    if nfs is None:
        return
    check_hardware(spec.nebius.region, "nfs", nfs, findings)
    check_stripes("nfs.boot_disk", nfs.boot_disk.size_gib, nfs.boot_disk.type, findings)
    check_stripes("nfs.data_disks", nfs.data_disks.size_gib, nfs.data_disks.type, findings)
    if spec.soperator.nfs_home is not None:
        problem = (
            "beside soperator.nfs_home; one server serves the homes: keep this one, whose disks "
            "outlive the cluster, or that one"
        )
        findings.add("nfs.home-twice", "nfs", problem)
    if nfs.billing is not Billing.ON_DEMAND:
        problem = (
            f"'{nfs.billing}'; a server that is taken away stops every node, and capacity blocks "
            "hold GPUs only: use on-demand"
        )
        findings.add("nfs.billing", "nfs.billing", problem)
    if nfs.gpus:
        problem = (
            f"'{nfs.platform}' has GPUs, which a file server leaves idle; use cpu-d3 or cpu-e2"
        )
        findings.add("nfs.gpus", "nfs.platform", problem)
    if nfs.data_disks.type is DiskType.NETWORK_SSD_NON_REPLICATED:
        problem = (
            "network-ssd-non-replicated keeps one copy: a lost disk takes every file along; "
            "network-ssd-io-m3 keeps three"
        )
        findings.add("nfs.one-copy", "nfs.data_disks.type", problem)
    if spec.nodes.nfs is not None and spec.soperator.nfs_home is None:
        problem = (
            "is for the server of soperator.nfs_home inside the cluster; this one has a machine "
            "of its own: remove the group"
        )
        findings.add("nfs.node-group", "nodes.nfs", problem)
