"""Machines of a stack: node groups by role and an NFS server of its own; their platform, preset,
disks, counts, billing and what nodes carry. Sizes are GiB (2^30 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from stacks.catalog import Preset, find_preset
from stacks.spec.decode import CountOrZero, Nodes, NodesOrZero, Pieces, SizeGib, WaitSeconds
from stacks.spec.storage import DiskType


class Billing(StrEnum):
    """How the provider bills a node."""

    ON_DEMAND = "on-demand"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"


class Reservation(StrEnum):
    """Whether nodes come out of capacity blocks, as the API spells it (lower case)."""

    AUTO = "auto"
    FORBID = "forbid"
    STRICT = "strict"


class VolumeFilesystem(StrEnum):
    """Filesystem on a disk that one node has for itself."""

    EXT4 = "ext4"
    XFS = "xfs"


IMAGE_PATH: Final = "/mnt/image-storage"
"""Where the image disk of a worker is in its jail; enroot and docker are told so."""


SHARED_MEMORY_GIB: Final = 64
"""Size of /dev/shm in GiB in a worker that declares none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDiskSpec:
    """Boot disk of every node of a group."""

    size_gib: SizeGib
    """Size in GiB of the boot disk of each node."""
    type: DiskType = DiskType.NETWORK_SSD
    """Type of the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUserSpec:
    """One user of the nodes themselves, outside Slurm, with passwordless sudo."""

    name: str
    """Name of the user on the nodes."""
    ssh_public_keys: tuple[str, ...]
    """OpenSSH public key lines. `file:PATH` in the stack file is read by the loader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSpec:
    """One virtual machine: hardware, boot disk, billing and address."""

    platform: str
    """Hardware type, such as `gpu-h100-sxm`."""
    preset: str
    """Size of the platform, such as `8gpu-128vcpu-1600gb`."""
    boot_disk: BootDiskSpec
    """Disk that it starts from."""
    billing: Billing = Billing.ON_DEMAND
    """How the provider bills it."""
    public_ip: bool = False
    """Whether it gets a public address of its own."""

    @property
    def hardware(self) -> Preset | None:
        """What the catalogue knows of it; None of a platform or preset that it does not know."""
        return find_preset(self.platform, self.preset)

    @property
    def gpus(self) -> int:
        """GPUs of one such machine."""
        return 0 if self.hardware is None else self.hardware.gpus

    @property
    def vcpus(self) -> int:
        """vCPUs of one such machine."""
        return 0 if self.hardware is None else self.hardware.vcpus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSpec(MachineSpec):
    """One mk8s node group of equal nodes."""

    min_nodes: NodesOrZero
    """Least number of nodes; `nodes: N` sets both ends."""
    max_nodes: Nodes
    """Equal to min_nodes for a fixed group; `nodes: N` in the file sets both."""
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Kubernetes labels beside those that the charts need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """How a changed node group replaces its nodes; of each pair at most one, percent or nodes."""

    max_unavailable_percent: CountOrZero | None = None
    """Share of the nodes that a roll-out may take away at once."""
    max_unavailable_nodes: NodesOrZero | None = None
    """Nodes that may be away at once; without either of the two 50 percent."""
    max_surge_percent: CountOrZero | None = None
    """Share of the nodes that a roll-out may add at once."""
    max_surge_nodes: NodesOrZero | None = None
    """Nodes that may be there beyond the count; without either of the two none."""
    drain_timeout_s: WaitSeconds | None = None
    """Longest wait for pods to leave a node; 0 waits for ever, None is the API's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationSpec:
    """Which capacity blocks the nodes come out of."""

    policy: Reservation = Reservation.AUTO
    """Whether nodes may, must or must not come out of capacity blocks."""
    ids: tuple[str, ...] = ()
    """Capacity block groups, in the order in which they are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNvmeSpec:
    """The drives of the machine itself as one RAID 0 array; lost when the node stops."""

    mount_path: str = "/mnt/local-nvme"
    """Absolute path on the node and in its jail."""
    filesystem: VolumeFilesystem = VolumeFilesystem.EXT4
    """Filesystem on the array."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDiskSpec:
    """One network disk for every worker alone, mounted in its jail; deleted with the worker."""

    name: str
    """Name of the disk."""
    mount_path: str
    """Absolute path in the jail of the worker."""
    size_gib: SizeGib
    """Size in GiB for each worker."""
    type: DiskType = DiskType.NETWORK_SSD
    """Type of the disk."""
    filesystem: VolumeFilesystem = VolumeFilesystem.EXT4
    """Filesystem on the disk."""
    folders: tuple[str, ...] = ()
    """Folders that are made on it, for everybody to write to; paths in the disk, such as `tmp`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDiskSpec:
    """One network disk for the container images of every worker; deleted with the worker."""

    size_gib: SizeGib
    """Size in GiB for each worker."""
    type: DiskType = DiskType.NETWORK_SSD_IO_M3
    """Type of the disk."""
    filesystem: VolumeFilesystem = VolumeFilesystem.EXT4
    """Filesystem on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(NodeGroupSpec):
    """One nodeset: node groups whose nodes run slurmd, called `<name>-<ordinal>` in Slurm."""

    name: str
    """Name of the nodeset; Slurm nodes are `<name>-0` and so on."""
    created_nodes: NodesOrZero | None = None
    """Nodes that must exist before the node groups count as made; None is min_nodes. With 0
    creation never waits for capacity: the autoscaler brings the nodes as pods ask for them."""
    infiniband_fabric: str | None = None
    """Fabric that its nodes join; none: they talk over Ethernet."""
    gpu_cluster_id: str | None = None
    """GPU cluster that exists; without it one is made for each `infiniband_fabric`."""
    shared_memory_gib: int = SHARED_MEMORY_GIB
    """Size in GiB of /dev/shm in each worker."""
    features: tuple[str, ...] = ()
    """Slurm features of its nodes, for `--constraint`, beside platform and boot disk type as
    `gpu_h100_sxm` and `network_ssd`."""
    gres_lines: tuple[str, ...] = ()
    """Lines of gres.conf for its nodes, such as device files with their cores; without any Slurm
    asks the driver."""
    extra: str | None = None
    """`Extra` of its nodes in slurm.conf; environment variables of the worker are filled in."""
    sshd_config_map: str | None = None
    """ConfigMap with the sshd configuration of its workers; None is Soperator's own."""
    strategy: StrategySpec = field(default_factory=StrategySpec)
    """How a changed group replaces its nodes."""
    reservation: ReservationSpec | None = None
    """Capacity blocks that its nodes come out of."""
    max_pods: int | None = None
    """Pods that a node holds; None is the API's 110."""
    nvidia_config_lines: tuple[str, ...] = ()
    """Lines of /etc/modprobe.d/nvidia_config.conf."""
    local_nvme: LocalNvmeSpec | None = None
    """Drives of the machine itself, where the platform has them."""
    local_disks: tuple[LocalDiskSpec, ...] = ()
    """Network disks that every node has for itself."""
    image_disk: ImageDiskSpec | None = None
    """Network disk of every node for container images."""

    @property
    def has_fabric(self) -> bool:
        """Whether the nodes talk over InfiniBand."""
        return self.infiniband_fabric is not None or self.gpu_cluster_id is not None

    @property
    def is_elastic(self) -> bool:
        """Whether Slurm itself brings and drops nodes between the least and the most."""
        return self.min_nodes < self.max_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSpec:
    """Node groups by role."""

    system: NodeGroupSpec
    """Nodes of the operators and of everything without a role."""
    controller: NodeGroupSpec
    """Node of slurmctld."""
    login: NodeGroupSpec
    """Nodes that users enter."""
    workers: tuple[WorkerSpec, ...]
    """Nodesets, any number."""
    accounting: NodeGroupSpec | None = None
    """Node of the accounting database."""
    nfs: NodeGroupSpec | None = None
    """For an NFS server inside the cluster."""
    ssh_users: tuple[NodeUserSpec, ...] = ()
    """Who may enter the nodes themselves; users of Slurm enter the login node."""
    paused: bool = False
    """Whether the worker groups have no nodes; what is declared of them stays."""

    def counts(self, group: NodeGroupSpec) -> tuple[int, int]:
        """Least and most nodes that the group has: none where it is a worker of a paused stack."""
        if self.paused and isinstance(group, WorkerSpec):
            return 0, 0
        return group.min_nodes, group.max_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDisksSpec:
    """Equal disks of one machine; several are striped (RAID 0) into one volume."""

    size_gib: SizeGib
    """Size in GiB of each disk."""
    count: Pieces = 1
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
