"""What the Slurm configuration files are rendered from."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra.local.slurm.setup import SlurmSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNode:
    """One slurmd: a pod of a NodeSet."""

    name: str
    nodeset: str
    port: int
    static: str
    """`nodeConfig.static` of the NodeSet: CPUs, topology and Gres of every node."""
    memory_mib: int
    features: tuple[str, ...] = ()
    has_gpus: bool = False
    """`gpu.enabled` of the NodeSet, whatever `static` says."""
    is_elastic: bool = False
    """Whether Slurm powers it up for a job and down when it is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One queue; without nodesets it has all nodes."""

    name: str
    config: str
    nodesets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A program that Slurm runs on every node again and again."""

    program: str
    interval_s: int
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """One cluster, as its custom resources declare it."""

    cluster: str
    namespace: str
    """Of its pods: a part of their names in DNS."""
    slurmctld_port: int
    slurmdbd_port: int
    mariadb_port: int
    workers: tuple[WorkerNode, ...]
    declares_nodes: bool
    """Whether NodeName lines are rendered: only for structured partitions."""
    partitions: tuple[Partition, ...] = ()
    raw_partitions: tuple[str, ...] = ()
    accounting: bool = False
    accounting_config: dict[str, str | int] = field(default_factory=dict)
    """Values of the accounting's `slurmConfig`, by Slurm's name."""
    slurm_config: dict[str, str | int] = field(default_factory=dict)
    """Values of `spec.slurmConfig`, by Slurm's name."""
    health_check: HealthCheck | None = None
    credential_s: int = 120
    """How long a job may take to launch; so long Slurm also holds back a job that is requeued."""
    custom: str = ""
    setup: SlurmSetup = field(default_factory=SlurmSetup)
