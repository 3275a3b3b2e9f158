"""Values of helm-soperatorchecks, the controller of active checks and node health. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from infra.render.resources import requests_and_limits
from stacks.node_capacity import GIB, Amounts
from stacks.spec import StackSpec

_MANAGER: Final = Amounts(cpu_m=500, memory_mib=GIB, ephemeral_mib=0)
# Nodes with state, which announced maintenance must not delete.
_KEPT_ROLES: Final = ("controller", "nfs", "accounting")
# Arguments of helm/soperatorchecks at 4.1.7 but for the deletion; Helm replaces a list as a whole.
_KEEPING_NODES: Final = (
    "--log-format=json",
    "--log-level=info",
    "--reconcile-timeout=3m",
    "--max-concurrent-reconciles=1",
    "--cache-sync-timeout=2m",
    "--not-ready-timeout=15m",
    "--delete-not-ready-nodes=false",
    "--leader-elect",
    "--maintenance-condition-type=NebiusMaintenanceScheduled",
)


def soperatorchecks_values(spec: StackSpec) -> dict[str, Any]:
    """Which nodes stay under maintenance, and whether a node that is not ready is deleted."""
    kept = ",".join(f"{names.NODESET_LABEL}={role}" for role in _KEPT_ROLES)
    manager: dict[str, Any] = {
        "env": {"maintenanceIgnoreNodeLabels": kept},
        "resources": requests_and_limits(_MANAGER),
    }
    if not spec.soperator.delete_unready_nodes:
        # By default it deletes any Kubernetes node that is not ready for 15 minutes, ours or not.
        manager["args"] = list(_KEEPING_NODES)
    return {"checks": {"manager": manager}}
