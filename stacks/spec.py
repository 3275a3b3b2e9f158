"""What one stack declares, as one frozen dataclass: the only shape that cost/ and infra/ read.

Owns which subjects a stack has; each has its own file beside this one. Loading is in load.py, rules
across fields are in check.py, hardware facts are in catalog.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stacks.cluster_spec import ClusterSpec, NebiusSpec
from stacks.cost_spec import (
    BudgetSpec,
    ChatSpec,
    ContractPriceSpec,
    PolicySpec,
    PreemptionSpec,
    QuotaSpec,
    RunForecastSpec,
)
from stacks.nfs_spec import NfsSpec
from stacks.node_spec import NodesSpec
from stacks.search_spec import SearchSpec
from stacks.slurm_spec import JobSpec, LoginSpec, SlurmSpec
from stacks.soperator_spec import SoperatorSpec
from stacks.storage_spec import StorageSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeSpec:
    """When `soperator reap` pauses the stack; None never does."""

    until: str | None = None
    """Time in UTC, such as `2026-12-24T18:00Z`, after which no job is submitted and the stack is
    paused."""
    idle_hours: int | None = None
    """Hours without any job after which the stack is paused."""


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
    searches: tuple[SearchSpec, ...] = ()
    """Hyperparameter searches, submitted like jobs."""
    runs: tuple[RunForecastSpec, ...] = ()
    preemption: PreemptionSpec | None = None
    policy: PolicySpec = field(default_factory=PolicySpec)
    budget: BudgetSpec | None = None
    lifetime: LifetimeSpec | None = None
    """When the stack is to end, and how long it may be idle; None: nobody minds."""
    soperator: SoperatorSpec = field(default_factory=SoperatorSpec)
    """Checks, observability, users and files beside Slurm itself."""
    nfs: NfsSpec | None = None
    quotas: tuple[QuotaSpec, ...] = ()
    """Limits of the project; one that is not given is not checked."""
