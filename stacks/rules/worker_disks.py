"""Rules of the disks that every worker has for itself: sizes, types, names, paths, folders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stacks.catalog import STRIPED_DISK_MAX_GIB, STRIPED_DISK_STEP_GIB
from stacks.errors import Findings
from stacks.machines import VOLUMES, shared_mounts
from stacks.rules.naming import (
    check_unique,
    is_under,
    name_problem,
    path_problem,
    reserved_problem,
)
from stacks.spec import StackSpec
from stacks.spec.nodes import IMAGE_PATH, WorkerSpec
from stacks.spec.storage import DiskType

STRIPED: Final = (DiskType.NETWORK_SSD_NON_REPLICATED, DiskType.NETWORK_SSD_IO_M3)
# A claim's name is <disk>-<pod>; 63 characters in all.
_DISK_NAME_MAX: Final = 22


def disks_of(worker: WorkerSpec, path: str) -> Iterator[tuple[str, int, DiskType]]:
    """Path, GiB and type of every disk that a node has beside its boot disk."""
    for index, disk in enumerate(worker.local_disks):
        yield f"{path}.local_disks[{index}]", disk.size_gib, disk.type
    if worker.image_disk is not None:
        yield f"{path}.image_disk", worker.image_disk.size_gib, worker.image_disk.type


def check_disks(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    """Every local disk and the image disk of one nodeset."""
    for at, size_gib, type_ in disks_of(worker, path):
        check_stripes(at, size_gib, type_, findings)
    if worker.image_disk is not None and worker.image_disk.type not in STRIPED:
        findings.error(
            f"{path}.image_disk.type",
            f"'{worker.image_disk.type}' is too slow for images; use {' or '.join(STRIPED)}",
            rule="nodes.image-disk-type",
        )
    check_unique(
        (disk.name for disk in worker.local_disks),
        f"{path}.local_disks",
        findings,
        key="name",
        rule="nodes.disk-twice",
    )
    taken = VOLUMES | {each.name for each in spec.storage.submounts}
    for index, disk in enumerate(worker.local_disks):
        problem = name_problem(disk.name, longest=_DISK_NAME_MAX)
        if problem:
            findings.error(f"{path}.local_disks[{index}].name", problem, rule="nodes.disk-name")
        if disk.name in taken:
            findings.error(
                f"{path}.local_disks[{index}].name",
                f"'{disk.name}' is the name of a submount or of a volume that each pod has; choose "
                "another",
                rule="nodes.disk-name-taken",
            )
        for folder in disk.folders:
            if path_problem(f"/{folder}"):
                findings.error(
                    f"{path}.local_disks[{index}].folders",
                    f"'{folder}' is no plain path in the disk; write it without a leading /, such "
                    "as tmp",
                    rule="nodes.disk-folder",
                )
    _check_disk_paths(spec, worker, path, findings)


def _check_disk_paths(spec: StackSpec, worker: WorkerSpec, path: str, findings: Findings) -> None:
    storage, taken = spec.storage, dict(shared_mounts(spec))
    if storage.memory is not None:
        taken["storage.memory"] = storage.memory.mount_path
    own = {
        f"{path}.local_disks[{i}].mount_path": each.mount_path
        for i, each in enumerate(worker.local_disks)
    }
    if worker.local_nvme is not None:
        own[f"{path}.local_nvme.mount_path"] = worker.local_nvme.mount_path
    if worker.image_disk is not None:
        own[f"{path}.image_disk"] = IMAGE_PATH
    for at, mount_path in own.items():
        problem = path_problem(mount_path)
        if problem is None and mount_path == "/":
            problem = "'/' is the jail itself; choose a directory in it"
        problem = problem or reserved_problem(mount_path)
        for other, there in taken.items():
            if problem is None and (is_under(mount_path, there) or is_under(there, mount_path)):
                problem = f"'{mount_path}' and '{there}' of {other} hide each other; put them apart"
        if problem:
            findings.error(at, problem, rule="nodes.disk-path")
        taken[at.removesuffix(".mount_path")] = mount_path


def check_stripes(path: str, size_gib: int, type_: DiskType, findings: Findings) -> None:
    """Sizes of disks that are made of stripes."""
    if type_ not in STRIPED:
        return
    if size_gib % STRIPED_DISK_STEP_GIB != 0:
        above = -(-size_gib // STRIPED_DISK_STEP_GIB) * STRIPED_DISK_STEP_GIB
        findings.error(
            f"{path}.size_gib",
            f"{size_gib} GiB is not a multiple of {STRIPED_DISK_STEP_GIB}, as {type_} needs; "
            f"use {above}",
            rule="nodes.disk-step",
        )
    if size_gib > STRIPED_DISK_MAX_GIB:
        findings.error(
            f"{path}.size_gib",
            f"{size_gib} GiB; {type_} ends at {STRIPED_DISK_MAX_GIB}",
            rule="nodes.disk-most",
        )
