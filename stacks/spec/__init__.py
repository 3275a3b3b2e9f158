"""What one stack declares, as one frozen dataclass: the only shape that cost/ and infra/ read.

Owns which subjects a stack has; each has its own file in this folder. They own names, types, units
and defaults. Loading is in load.py, rules across fields are in rules/.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stacks.spec.cluster import (
    AttachedSpec,
    ChargeSpec,
    ClusterSpec,
    NebiusSpec,
    NodePriceSpec,
    SoperatorSpec,
)
from stacks.spec.cost import (
    BudgetSpec,
    ChatSpec,
    ContractPriceSpec,
    PolicySpec,
    PreemptionSpec,
    QuotaSpec,
    RunForecastSpec,
)
from stacks.spec.nodes import NfsSpec, NodesSpec
from stacks.spec.slurm import JobSpec, LoginSpec, SearchSpec, SlurmSpec
from stacks.spec.storage import StorageSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LifetimeSpec:
    """When `soperator cluster autostop` pauses the stack; None never does."""

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
    attached: AttachedSpec | None = None
    """Slurm cluster that others run; such a stack declares nothing to build."""
    node_prices: tuple[NodePriceSpec, ...] = ()
    """Prices of the nodes of an attached cluster; nodes without one are unpriced."""
    charge: ChargeSpec = field(default_factory=ChargeSpec)
    """Account and QOS of every job."""
