"""Stack outputs that are plain values: spec -> dict. Pure; ids and addresses come elsewhere."""

from __future__ import annotations

from typing import Any

from infra.render.login import minimum_nodes
from infra.render.resources import preset_of
from stacks.node_capacity import GIB, slurmd_amounts
from stacks.soperator_mounts import MEMORY
from stacks.soperator_spec import HOME
from stacks.spec import StackSpec
from stacks.storage_spec import FilesystemSpec, SubmountSpec


def mounts(spec: StackSpec) -> dict[str, str]:
    """Mount path in the jail -> what stands behind it."""
    found = {"/": f"filesystem jail, {_size(spec.storage.jail)}"}
    for submount in spec.storage.submounts:
        found[submount.mount_path] = f"filesystem {submount.name}, {_size(submount)}"
    if spec.soperator.nfs_home is not None:
        found[HOME] = f"NFS in the cluster, {spec.soperator.nfs_home.size_gib} GiB"
    if spec.nfs is not None:
        disks = spec.nfs.data_disks
        found[spec.nfs.mount_path] = f"NFS server, {disks.total_gib} GiB"
    found[MEMORY] = memory_text(spec)
    if spec.storage.memory is not None:
        found[spec.storage.memory.mount_path] = f"tmpfs, {spec.storage.memory.size_gib} GiB a node"
    return found


def memory_text(spec: StackSpec) -> str:
    """Soperator's own tmpfs: limited by what slurmd asks for, which the preset decides."""
    sssd = spec.soperator.sssd is not None
    asked = (
        slurmd_amounts(preset_of(worker), worker.boot_disk.size_gib, sssd=sssd).memory_mib // GIB
        for worker in spec.nodes.workers
    )
    return f"tmpfs, at most {' or '.join(map(str, sorted({*asked})))} GiB a node"


def _size(filesystem: FilesystemSpec | SubmountSpec) -> str:
    if filesystem.existing_id is not None:
        return f"existing {filesystem.existing_id}"
    return f"{filesystem.size_gib} GiB"


def job_commands(spec: StackSpec) -> dict[str, str]:
    """Name of a job or search -> the exact shell command that starts it."""
    names = (*(job.name for job in spec.jobs), *(search.name for search in spec.searches))
    return {name: f"soperator submit {name} --stack {spec.name}" for name in names}


def nodesets(spec: StackSpec) -> dict[str, dict[str, Any]]:
    """Nodeset name -> platform, preset and declared size."""
    names = minimum_nodes(spec)
    return {
        worker.name: {
            "platform": worker.platform,
            "preset": worker.preset,
            "min_nodes": worker.min_nodes,
            "max_nodes": worker.max_nodes,
            "nodes": [name for name in names if name.rsplit("-", 1)[0] == worker.name],
        }
        for worker in spec.nodes.workers
    }


def ssh_command(login_ip: str, ssh_port: int) -> str:
    """How a declared user enters; `soperator ssh` pins the host key as well."""
    port = "" if ssh_port == 22 else f" -p {ssh_port}"
    return f"ssh{port} root@{login_ip}"
