"""What Slurm and its users see: the login door, partitions, teams, jobs and searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from itertools import product
from types import MappingProxyType
from typing import Final

from stacks.spec.decode import CountOrZero, Nodes

TRAIN_MODULE: Final = "workloads.train"
SERVE_MODULE: Final = "workloads.serve"
LOAD_MODULE: Final = "workloads.load"
ACCEPT_MODULE: Final = "workloads.accept"
LOOK_MODULE: Final = "workloads.look"
RECIPE_ENDINGS: Final = (".json", ".yaml", ".yml")


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
    public_ip: bool = True
    """Whether the address of the door is public; a private one needs a route into the network."""
    allowed_cidrs: tuple[str, ...] = ()
    """IPv4 blocks that may reach the SSH door of a LoadBalancer; empty is everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """One Slurm queue; without nodesets it has all nodes."""

    name: str
    """Name of the queue."""
    nodesets: tuple[str, ...] = ()
    """Its nodesets; empty: all nodes."""
    config: str = "Default=NO PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES"
    """Rest of its line in slurm.conf."""


WHOLE_NODES: Final = "OverSubscribe=EXCLUSIVE"
"""In the line of a partition whose jobs get whole nodes, whatever they ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QosSpec:
    """One quality of service: how urgent jobs are and what one user or all may hold."""

    name: str
    """Name of the QOS."""
    priority: CountOrZero = 0
    """Added to the priority of its jobs, relative to other QOS."""
    max_wall: str | None = None
    """Longest time of one job, as Slurm writes it."""
    max_gpus: int | None = None
    """GPUs that all its running jobs hold together."""
    max_gpus_per_user: int | None = None
    """GPUs that the running jobs of one user hold together."""
    max_jobs_per_user: int | None = None
    """Running jobs of one user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSpec:
    """One Slurm account: a team, what it may use, and its share of the cluster."""

    name: str
    """Name of the account."""
    users: tuple[str, ...]
    """Login names whose jobs it takes; root and deployer always are."""
    fair_share: int = 1
    """Its share, relative to the other accounts."""
    qos: tuple[str, ...] = ()
    """QOS of its jobs, the default first; empty: Slurm's own `normal`."""
    max_gpus: int | None = None
    """GPUs that its running jobs hold together."""
    max_nodes: Nodes | None = None
    """Nodes that its running jobs hold together."""
    max_jobs: int | None = None
    """Running jobs of the whole account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSpec:
    """Slurm settings that a stack may declare."""

    partitions: tuple[PartitionSpec, ...]
    accounting: bool = True
    """Whether slurmdbd, its database and the REST server run."""
    accounts: tuple[AccountSpec, ...] = ()
    """Teams. With one declared, Slurm takes only jobs of declared users."""
    qos: tuple[QosSpec, ...] = ()
    """Qualities of service that accounts may name."""
    suspend_after_s: int = 600
    """Idle time after which a node of an elastic nodeset goes, but for its min_nodes."""
    config_lines: tuple[str, ...] = ()
    """Lines for the end of slurm.conf, such as `PriorityDecayHalfLife=7-0`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One Slurm job: `python -m <module>` with a recipe, on `nodes` x `gpus_per_node` ranks."""

    name: str
    """Name of the job and of its file in `code_path/jobs`."""
    module: str
    """Module inside workloads/, such as `workloads.train`."""
    recipe: str
    """File name in workloads/recipes/ without its ending."""
    nodes: Nodes = 1
    """Nodes that it asks for."""
    gpus_per_node: CountOrZero = 0
    """GPUs, and with them ranks, on each node."""
    cpus_per_task: int | None = None
    """CPUs for each rank; without it the share of its GPU in the node's, and 1 without GPUs."""
    time_limit: str = "01:00:00"
    """Slurm time after which it is ended, such as `06:00:00`."""
    partition: str = "main"
    """Queue that it is submitted to."""
    after: tuple[str, ...] = ()
    """Jobs whose success this one needs; one may be given as text."""
    schedule: str | None = None
    """When Slurm submits it by itself, with all that it needs: five fields of cron such as
    `0 2 * * 1-5`, or a word such as `@daily`, by the cluster's clock."""
    args: tuple[str, ...] = ()
    """Further arguments of the module."""
    least_nodes: Nodes | None = None
    """Fewest nodes that it may go on with when some are lost; without it: `nodes`."""
    restarts: CountOrZero = 3
    """How often lost or hung ranks start again from the last checkpoint."""
    save_s: int = 60
    """Seconds that it gets to save before its time limit and when it is preempted; on preemptible
    nodes at most 60, the notice of the cloud."""
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of its ranks, such as `NCCL_DEBUG: INFO`; they win over the derived ones. No
    secrets: every user of the cluster may read a job's script."""
    environment_file: str | None = None
    """File on the cluster with lines `NAME=value`, such as a token for a hub: of the user who
    submits, mode 0600, read when the job starts."""
    container: str | None = None
    """Image that the job runs in by pyxis, such as `vllm/vllm-openai:v0.33.0` or a .sqsh file; its
    `python3` has what the job imports."""

    @property
    def is_server(self) -> bool:
        """Whether it answers until it is stopped: one process, and nothing waits for its end."""
        return self.module == SERVE_MODULE

    @property
    def is_load_test(self) -> bool:
        """Whether it asks a server as many clients do: one process that gets the chat profile."""
        return self.module == LOAD_MODULE

    @property
    def ends(self) -> bool:
        """Whether equal inputs give an equal result at its end, so that one run of it is enough."""
        return not (self.is_server or self.is_load_test or self.is_acceptance)

    @property
    def is_acceptance(self) -> bool:
        """Whether it holds the cluster against limits; no other job waits for it."""
        return self.module == ACCEPT_MODULE


class Goal(StrEnum):
    """Which end of a metric is the better one."""

    LOWEST = "lowest"
    HIGHEST = "highest"


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisSpec:
    """One setting of the recipe and the values that it takes in turn."""

    key: str
    """Setting as `--set` names it, such as `train.learning_rate`."""
    values: tuple[str, ...]
    """Its values as `--set` takes them; numbers in quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One run beside the grid."""

    settings: tuple[str, ...]
    """Settings as `--set` takes them, such as `train.learning_rate=2e-5`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpec:
    """A declared job as an array: a task for each combination of the grid and each listed trial."""

    name: str
    """Name of the array, submitted like a job."""
    job: str
    """Job that each task runs."""
    metric: str
    """Metric of the run record that trials are ranked by, such as `last_loss`."""
    goal: Goal = Goal.LOWEST
    """Which end of the metric is the better one."""
    grid: tuple[AxisSpec, ...] = ()
    """Settings whose values are combined, the last one changing first."""
    trials: tuple[TrialSpec, ...] = ()
    """Further trials."""
    at_once: int = 1
    """Tasks that run at the same time."""
    max_usd: Decimal | None = None
    """US dollars over which it is not submitted."""

    @property
    def settings(self) -> tuple[tuple[str, ...], ...]:
        """The settings of each task, by its number in the array."""
        axes = [[f"{axis.key}={value}" for value in axis.values] for axis in self.grid]
        combined = tuple(product(*axes)) if axes else ()
        return (*combined, *(trial.settings for trial in self.trials))
