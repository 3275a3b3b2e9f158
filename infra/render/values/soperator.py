"""Values of helm-soperator, the operator; it brings the CRDs in its own `crds/`. Pure."""

from __future__ import annotations

from typing import Any, Final

from infra.render.resources import requests_and_limits
from stacks.node_capacity import GIB, Amounts
from stacks.spec import StackSpec

# The chart's 128 MiB are too few for a cluster; these are the umbrella chart's.
_MANAGER: Final = Amounts(cpu_m=500, memory_mib=GIB, ephemeral_mib=0)


def soperator_values(spec: StackSpec) -> dict[str, Any]:
    """What is installed beside it, which the chart compares as text, and its resources."""
    environment = {
        "isPrometheusCrdInstalled": "true",
        "isMariadbCrdInstalled": _text(spec.slurm.accounting),
        "isApparmorCrdInstalled": _text(spec.soperator.apparmor),
    }
    manager = {"env": environment, "resources": requests_and_limits(_MANAGER)}
    return {"controllerManager": {"manager": manager}}


def _text(value: bool) -> str:
    return "true" if value else "false"
