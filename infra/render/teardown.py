"""Where the clean-up at the end of a stack looks: the namespaces that its charts fill. Pure."""

from __future__ import annotations

from infra.render.backup import k8up_chart
from infra.render.charts import cluster_charts, platform_charts
from stacks.spec import StackSpec


def namespaces(spec: StackSpec) -> tuple[str, ...]:
    """Every namespace of the stack, the Slurm cluster's own first."""
    charts = [
        *platform_charts(spec),
        *cluster_charts(spec, allocation_id="", ssh_public_keys=[], slack_webhook_url=""),
    ]
    if spec.storage.backup is not None:
        charts.append(k8up_chart())
    return tuple(dict.fromkeys((spec.cluster.namespace, *(chart.namespace for chart in charts))))
