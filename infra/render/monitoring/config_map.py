"""The ConfigMap that brings every dashboard of a stack to Grafana. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from cost.burn import Burn
from infra.render.monitoring.cost_dashboard import cost_dashboard
from infra.render.monitoring.dashboards import gpu_dashboard, train_dashboard
from infra.render.monitoring.objects import NAME
from infra.render.monitoring.panels import Dashboard
from infra.render.monitoring.serve_dashboard import serve_dashboard
from infra.render.values.observability import MONITORING

CONFIG_MAP: Final = f"{NAME}-dashboards"
SIDECAR_LABEL: Final = {"grafana_dashboard": "1"}
"""What Grafana's sidecar looks for: default of the chart, and the label of Soperator's own
dashboards (helm/soperator-monitoring-dashboards/templates/_helpers.tpl, read 2026-11-21)."""


def dashboards(burn: Burn) -> tuple[Dashboard, ...]:
    """Every dashboard of a stack."""
    return (gpu_dashboard(), train_dashboard(), serve_dashboard(), cost_dashboard(burn))


def config_map(burn: Burn) -> dict[str, Any]:
    """The ConfigMap that brings them to Grafana."""
    return {
        "metadata": {"name": CONFIG_MAP, "namespace": MONITORING, "labels": SIDECAR_LABEL},
        "data": {each.file_name: json.dumps(each.to_json(), indent=1) for each in dashboards(burn)},
    }
