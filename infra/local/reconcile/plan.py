"""What should run on this machine as plain values, and what the operator reports of it.

A condition that is not met says what is missing in words. planner.py makes a plan, others run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.clients.kube_rules import condition, kubernetes_time
from infra.local.process import PORT_IN_USE, tells_of_use
from infra.local.reconcile.pod_specs import PodSet
from infra.local.reconcile.snapshot import Held, Object, Volume, name_of
from infra.local.slurm.daemons import SlurmSettings, WorkerNode

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
class ClusterPlan:
    """One SlurmCluster with its NodeSets."""

    source: Object
    settings: SlurmSettings
    pods: Mapping[str, PodPlan]
    """Those of `controller` and `login`, and with a database of `accounting` and `database`."""
    ssh_port: int
    authorized_keys: tuple[str, ...]
    host_keys: tuple[bytes, ...]
    """Private keys of the Secret; empty where the operator makes its own."""
    notes: Mapping[str, str]
    """Condition type -> message of what is declared and does not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that should run on this machine."""

    cluster: ClusterPlan | None = None
    nodesets: tuple[NodeSetPlan, ...] = ()
    refused: tuple[tuple[Object, str], ...] = ()
    """SlurmClusters that do not come up, and why."""
    stopped: bool = False
    """Whether maintenance keeps every pod away, so that none is missed."""


def notes(spec: Mapping[str, Any], nodesets: tuple[NodeSetPlan, ...]) -> dict[str, str]:
    """Type -> message of each condition; none where all that is declared comes up."""
    found: dict[str, str] = {}
    nodes = spec["slurmNodes"]
    accounting = nodes.get("accounting") or {}
    if (nodes.get("rest") or {}).get("enabled") and not accounting.get("enabled"):
        found["RESTAvailable"] = "rest is skipped: it needs accounting.enabled"
    if accounting.get("enabled") and (accounting.get("externalDB") or {}).get("enabled"):
        found["AccountingAvailable"] = "an external database is not reachable from here"
    known = {name_of(item.source) for item in nodesets if not item.problem}
    partitions = (spec.get("partitionConfiguration") or {}).get("partitions") or []
    unresolved = sorted(
        {name for item in partitions for name in item.get("nodeSetRefs") or []} - known
    )
    if unresolved:
        found["NodeSetRefsResolved"] = f"no NodeSet named {', '.join(unresolved)}"
    if not (nodes["login"].get("sshRootPublicKeys") or []):
        found["SSHKeysPresent"] = "login.sshRootPublicKeys is empty: nobody may enter"
    return found


_NEEDED: Final = (
    "CommonAvailable",
    "ControllersAvailable",
    "LoginAvailable",
    "AccountingAvailable",
)


def cluster_status(plan: ClusterPlan, waiting: Mapping[str, str]) -> dict[str, Any]:
    """Status of the SlurmCluster; `waiting` says by pod why it is not ready, empty where it is."""
    told = {role: _pod_problem(pod, waiting) for role, pod in plan.pods.items()}
    problems = {
        "CommonAvailable": "",
        "ControllersAvailable": told["controller"],
        "LoginAvailable": told["login"],
        "PopulateJailMode": "",
    }
    if "database" in told:
        problems["AccountingAvailable"] = told["database"] or told["accounting"]
    problems |= plan.notes
    return {
        "phase": "Reconciling" if any(problems.get(key) for key in _NEEDED) else "Available",
        "conditions": [_condition(plan.source, key, text) for key, text in problems.items()],
        "readyLogin": 0 if told["login"] else 1,
    }


def refused_status(source: Object, reason: str) -> dict[str, Any]:
    """Status of a SlurmCluster of which nothing comes up."""
    return {
        "phase": "Not available",
        "conditions": [_condition(source, "CommonAvailable", reason)],
        "readyLogin": 0,
    }


def nodeset_status(
    plan: NodeSetPlan, waiting: Mapping[str, str], *, cluster_runs: bool, stopped: bool = False
) -> dict[str, Any]:
    """Status of a NodeSet: ready once every worker of it is; none is wanted of a stopped one."""
    wanted = len(plan.pods) or len(plan.workers) or plan.source["spec"].get("replicas", 1)
    if plan.problem:
        problems = [plan.problem]
    elif stopped:
        problems = []
    elif not cluster_runs:
        problems = ["the SlurmCluster does not come up"]
    else:
        reasons = ((pod.name, _pod_problem(pod, waiting)) for pod in plan.pods)
        problems = [f"{name}: {reason}" for name, reason in reasons if reason]
    ready = 0 if plan.problem or not cluster_runs else len(plan.pods) - len(problems)
    text = "; ".join(problems)
    return {
        "phase": "Pending" if problems else "Ready",
        "replicas": ready,
        "conditions": [
            _condition(plan.source, "PodsReady", text and f"{ready} of {wanted} ready; {text}")
        ],
    }


def _pod_problem(pod: PodPlan, waiting: Mapping[str, str]) -> str:
    return pod.problem or waiting.get(pod.name, "not started")


def _condition(source: Object, type_: str, problem: str) -> dict[str, Any]:
    """A condition that keeps the time of its last change; a taken port has a reason of its own."""
    reason = PORT_IN_USE if tells_of_use(problem) else "Missing" if problem else "Ready"
    status = "False" if problem else "True"
    made = {"type": type_, "status": status, "reason": reason, "message": problem}
    return kept_time(source, made)


def kept_time(source: Object, made: dict[str, Any]) -> dict[str, Any]:
    """The condition with the time of its last change, by what the live object says."""
    old = condition(source, made["type"])
    is_same = old.get("status") == made["status"]
    changed = old["lastTransitionTime"] if is_same else kubernetes_time()
    return {**made, "lastTransitionTime": changed}
