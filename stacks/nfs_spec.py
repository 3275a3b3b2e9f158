"""An NFS server on a machine of its own: its disks, its path in the jail.

Owns names, types and defaults; `StackSpec` (spec.py) holds them. Rules are in rules/nfs.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from stacks.node_spec import MachineSpec
from stacks.storage_spec import DiskType


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDisksSpec:
    """Equal disks of one machine; several are striped (RAID 0) into one volume."""

    size_gib: int
    """Size in GiB of each disk."""
    count: int = 1
    """Number of disks; fixed once they hold data."""
    type: DiskType = DiskType.NETWORK_SSD_IO_M3
    """Type of the disks; fixed once they hold data."""

    @property
    def total_gib(self) -> int:
        """GiB of all disks together."""
        return self.count * self.size_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class NfsSpec(MachineSpec):
    """An NFS server on a machine beside the cluster; destroy keeps its data disks, unless told."""

    data_disks: DataDisksSpec
    """What it exports."""
    mount_path: str = "/home"
    """Absolute path in the jail, on login and worker nodes."""
