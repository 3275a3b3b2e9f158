"""What one stack declares, as frozen dataclasses: the only shape that cost/ and infra/ read.

Owns names, types, units and defaults. Loading is in load.py, rules across fields are in check.py,
hardware facts are in catalog.py. Sizes are GiB (2^30 bytes); money and prices are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from stacks.cost_spec import (
    BudgetSpec,
    ChatSpec,
    ContractPriceSpec,
    PolicySpec,
    PreemptionSpec,
    QuotaSpec,
    RunForecastSpec,
)

PLACES: Final = ("data", "model", "chkpt", "elastic", "logs", "results", "cache", "scratch")
"""Logical places that recipes name; every stack maps each to a path."""


class DiskType(StrEnum):
    """Nebius disk and filesystem types, as the API spells them (lower case, dashes)."""

    NETWORK_SSD = "network-ssd"
    NETWORK_SSD_NON_REPLICATED = "network-ssd-non-replicated"
    NETWORK_SSD_IO_M3 = "network-ssd-io-m3"
    NETWORK_HDD = "network-hdd"


class Billing(StrEnum):
    """How the provider bills a node."""

    ON_DEMAND = "on-demand"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"


class SshServiceType(StrEnum):
    """Kubernetes service type of the login node's SSH server."""

    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"


@dataclass(frozen=True, slots=True, kw_only=True)
class NebiusSpec:
    """Where in Nebius the stack lives; ids as the console shows them."""

    tenant_id: str
    project_id: str
    region: str
    network_id: str | None = None
    """Existing network; None makes one."""
    subnet_id: str | None = None
    """Existing subnet; None makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The mk8s cluster and the Soperator release on it."""

    kubernetes_version: str = "1.33"
    etcd_size: int = 3
    soperator_version: str = "4.1.7"
    slurm_cluster_name: str = "soperator"
    namespace: str = "soperator"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemSpec:
    """One shared filesystem without a mount path of its own (controller spool, accounting)."""

    size_gib: int
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmountSpec:
    """One extra shared filesystem in the jail at `mount_path`: `existing_id` or `size_gib`."""

    name: str
    mount_path: str
    size_gib: int | None = None
    existing_id: str | None = None
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMountSpec:
    """A tmpfs on every worker; lost with the node."""

    mount_path: str
    size_gib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSpec:
    """Daily copies of the jail in object storage."""

    keep_daily: int
    size_gib: int
    """Size of one copy that is paid for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSpec:
    """Every filesystem of the stack and the logical places that recipes name."""

    jail: FilesystemSpec
    controller_spool: FilesystemSpec
    accounting: FilesystemSpec | None = None
    submounts: tuple[SubmountSpec, ...] = ()
    memory: MemoryMountSpec | None = None
    backup: BackupSpec | None = None
    places: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Logical place (PLACES) -> absolute path in the jail."""
    config_bucket_gib: int | None = None
    """Object storage of versioned configs, whole GiB; 0 means under one GiB; None has no bucket."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDiskSpec:
    """Boot disk of every node of a group."""

    size_gib: int
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSpec:
    """One mk8s node group of equal nodes."""

    platform: str
    preset: str
    boot_disk: BootDiskSpec
    min_nodes: int
    max_nodes: int
    """Equal to min_nodes for a fixed group; `nodes: N` in the file sets both."""
    billing: Billing = Billing.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(NodeGroupSpec):
    """One nodeset: a node group whose nodes run slurmd, called `<name>-<ordinal>` in Slurm."""

    name: str
    infiniband_fabric: str | None = None
    shared_memory_gib: int = 64
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSpec:
    """Node groups by role."""

    system: NodeGroupSpec
    controller: NodeGroupSpec
    login: NodeGroupSpec
    workers: tuple[WorkerSpec, ...]
    accounting: NodeGroupSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSpec:
    """The door: who may enter and on which port."""

    ssh_public_keys: tuple[str, ...]
    """OpenSSH public key lines. `file:PATH` in the stack file is read by the loader."""
    service: SshServiceType = SshServiceType.LOAD_BALANCER
    ssh_port: int = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """One Slurm queue; without nodesets it has all nodes."""

    name: str
    nodesets: tuple[str, ...] = ()
    config: str = "Default=NO PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSpec:
    """Slurm settings that a stack may declare."""

    partitions: tuple[PartitionSpec, ...]
    accounting: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One Slurm job: `python -m <module>` with a recipe, on `nodes` x `gpus_per_node` ranks."""

    name: str
    module: str
    """Module inside workloads/, such as `workloads.train`."""
    recipe: str
    """File name in workloads/recipes/ without its ending."""
    nodes: int = 1
    gpus_per_node: int = 0
    cpus_per_task: int = 1
    time_limit: str = "01:00:00"
    partition: str = "main"
    after: str | None = None
    """Job whose success this one needs."""
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StackSpec:
    """Everything that one stack declares."""

    name: str
    nebius: NebiusSpec
    cluster: ClusterSpec
    storage: StorageSpec
    nodes: NodesSpec
    login: LoginSpec
    slurm: SlurmSpec
    jobs: tuple[JobSpec, ...]
    chat: ChatSpec
    prices: str
    """Price book in cost/prices/ without its ending."""
    code_path: str
    """Directory in the jail that receives the code; `current` in it is the live release."""
    python_env_path: str
    """Python environment in the jail that jobs run with."""
    bill_heading: str | None = None
    """Printed over the bill where the stack does not pay it."""
    contract_prices: tuple[ContractPriceSpec, ...] = ()
    live_prices: bool = False
    """Whether cached estimates of the provider's own calculator win over the book."""
    runs: tuple[RunForecastSpec, ...] = ()
    preemption: PreemptionSpec | None = None
    policy: PolicySpec = field(default_factory=PolicySpec)
    budget: BudgetSpec | None = None
    quotas: tuple[QuotaSpec, ...] = ()
    """Limits of the project; one that is not given is not checked."""
