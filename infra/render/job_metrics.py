"""Where a job sends its own metrics, for workloads/common/publish.py: spec -> environment. Pure."""

from __future__ import annotations

from infra.render.values.observability import METRICS_IMPORT
from stacks.soperator_spec import Observability
from stacks.spec import StackSpec


def metrics_environment(spec: StackSpec) -> dict[str, str]:
    """The address of the metrics store; nothing where the stack has none."""
    if spec.soperator.observability is Observability.OFF:
        return {}
    return {"SOPERATOR_METRICS_URL": METRICS_IMPORT}
