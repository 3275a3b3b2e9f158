"""Paths in the jail that every login and worker node shares: `shared_mounts(spec)`.

One list for rules, jobs and outputs, so that a new kind of mount is in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping

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
