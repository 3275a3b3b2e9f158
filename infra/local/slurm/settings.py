"""What the Slurm configuration files are rendered from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

NEVER_S: Final = 1_000_000_000
"""The value of the custom resource where nothing is declared: thirty years."""


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
    is_elastic: bool = False
    """Whether Slurm powers it up for a job and down when it is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One queue; without nodesets it has all nodes."""

    name: str
    config: str
    nodesets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """One cluster, as its custom resources declare it."""

    cluster: str
    slurmctld_port: int
    slurmdbd_port: int
    mariadb_port: int
    workers: tuple[WorkerNode, ...]
    declares_nodes: bool
    """Whether NodeName lines are rendered: only for structured partitions."""
    partitions: tuple[Partition, ...] = ()
    raw_partitions: tuple[str, ...] = ()
    accounting: bool = False
    job_gather: str = "jobacct_gather/linux"
    slurm_config: dict[str, int] = field(default_factory=dict)
    credential_s: int = 120
    """How long a job may take to launch; so long Slurm also holds back a job that is requeued."""
    """Values of `spec.slurmConfig` that Slurm takes as they are, by Slurm's name."""
    suspend_after_s: int = NEVER_S
    """Idle time after which a node of an elastic set is powered down."""
    custom: str = ""
