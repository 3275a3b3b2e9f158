"""What should run on this machine, as plain values: planner.py makes them, others run them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.local.reconcile.pod_specs import PodSet
from infra.local.reconcile.snapshot import Object
from infra.local.reconcile.volumes import Held, Volume
from infra.local.slurm.settings import SlurmSettings, WorkerNode

DATABASE_POD: Final = "acct-db-0"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """One pod: where it runs and what it mounts, or why it waits."""

    name: str
    problem: str = ""
    held: Held = Held.SCHEDULING
    """At which step the problem keeps it; means nothing without one."""
    node: str = ""
    of: PodSet | None = None
    """What makes it, as the API server shows it; None where nothing does."""
    jail: Path | None = None
    mounts: tuple[tuple[str, Volume], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetPlan:
    """One NodeSet: its workers, or why the operator ignores it."""

    source: Object
    workers: tuple[WorkerNode, ...] = ()
    """Nodes that Slurm knows."""
    pods: tuple[PodPlan, ...] = ()
    """What runs of them: all, or of an elastic set those that are powered up."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshPlan:
    """The login node's door."""

    port: int
    authorized_keys: tuple[str, ...]
    host_keys: tuple[bytes, ...]
    """Private keys of the Secret; empty where the operator makes its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """One SlurmCluster with its NodeSets."""

    source: Object
    settings: SlurmSettings
    controller: PodPlan
    login: PodPlan
    ssh: SshPlan
    accounting: PodPlan | None = None
    database: PodPlan | None = None
    notes: tuple[tuple[str, str], ...] = ()
    """Condition type and message of what is declared and does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that should run on this machine."""

    cluster: ClusterPlan | None = None
    nodesets: tuple[NodeSetPlan, ...] = ()
    refused: tuple[tuple[Object, str], ...] = ()
    """SlurmClusters that do not come up, and why."""
    stopped: bool = False
    """Whether maintenance keeps every pod away, so that none is missed."""
