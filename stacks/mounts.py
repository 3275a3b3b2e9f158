"""Paths in the jail that every login and worker node shares, and that each has for itself.

One list of each for rules, jobs and outputs, so that a new kind of mount is in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from stacks.node_spec import IMAGE_PATH
from stacks.soperator_mounts import IN_JAIL
from stacks.soperator_spec import HOME
from stacks.spec import StackSpec


def shared_mounts(spec: StackSpec) -> Mapping[str, str]:
    """Config key -> mount path of everything shared beside the jail itself."""
    found = {
        f"storage.submounts[{index}]": submount.mount_path
        for index, submount in enumerate(spec.storage.submounts)
    }
    if spec.nfs is not None:
        found["nfs"] = spec.nfs.mount_path
    if spec.soperator.nfs_home is not None:
        found["soperator.nfs_home"] = HOME
    return found


def paths_of_one_node(spec: StackSpec) -> Mapping[str, str]:
    """Mount path of what each node has for itself -> how a message calls it."""
    paths = {mount.path: mount.what for mount in IN_JAIL if mount.of_one_node}
    for worker in spec.nodes.workers:
        for disk in worker.local_disks:
            paths[disk.mount_path] = f"a disk of each '{worker.name}' node ({disk.mount_path})"
        if worker.local_nvme is not None:
            drive = worker.local_nvme.mount_path
            paths[drive] = f"the drives of each '{worker.name}' node ({drive})"
        if worker.image_disk is not None:
            paths[IMAGE_PATH] = f"the image disk of each '{worker.name}' node ({IMAGE_PATH})"
    if spec.storage.memory is not None:
        memory = spec.storage.memory.mount_path
        paths[memory] = f"the memory of each worker ({memory})"
    return paths
