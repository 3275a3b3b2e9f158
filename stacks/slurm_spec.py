"""What Slurm and its users see: the login door, partitions and jobs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SshServiceType(StrEnum):
    """Kubernetes service type of the login node's SSH server."""

    LOAD_BALANCER = "LoadBalancer"
    NODE_PORT = "NodePort"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginSpec:
    """The door: who may enter and on which port."""

    ssh_public_keys: tuple[str, ...]
    """OpenSSH public key lines. `file:PATH` in the stack file is read by the loader."""
    service: SshServiceType = SshServiceType.LOAD_BALANCER
    """Kubernetes service type of the SSH door."""
    ssh_port: int = 22
    """Port of the SSH door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """One Slurm queue; without nodesets it has all nodes."""

    name: str
    """Name of the queue."""
    nodesets: tuple[str, ...] = ()
    """Its nodesets; empty: all nodes."""
    config: str = "Default=NO PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES"
    """Rest of its line in slurm.conf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSpec:
    """Slurm settings that a stack may declare."""

    partitions: tuple[PartitionSpec, ...]
    accounting: bool = True
    """Whether slurmdbd, its database and the REST server run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One Slurm job: `python -m <module>` with a recipe, on `nodes` x `gpus_per_node` ranks."""

    name: str
    """Name of the job and of its file in `code_path/jobs`."""
    module: str
    """Module inside workloads/, such as `workloads.train`."""
    recipe: str
    """File name in workloads/recipes/ without its ending."""
    nodes: int = 1
    """Nodes that it asks for."""
    gpus_per_node: int = 0
    """GPUs, and with them ranks, on each node."""
    cpus_per_task: int = 1
    """CPUs for each rank."""
    time_limit: str = "01:00:00"
    """Slurm time after which it is ended, such as `06:00:00`."""
    partition: str = "main"
    """Queue that it is submitted to."""
    after: str | None = None
    """Job whose success this one needs."""
    args: tuple[str, ...] = ()
    """Further arguments of the module."""
