"""The custom resources of a chart, ahead of its release."""

from __future__ import annotations

import pulumi

from infra.render.charts import Chart


class CustomResources(pulumi.CustomResource):
    """Definitions of a chart's crds/, upgraded before the release of its version."""

    def __init__(
        self,
        chart: Chart,
        *,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        properties = {
            "chart": chart.chart,
            **({} if chart.repository is None else {"repository": chart.repository}),
            "version": chart.version,
            "group": chart.definitions,
            "kubeconfig": kubeconfig,
        }
        name = f"{chart.release}-custom-resources"
        super().__init__("soperator:kube:CustomResources", name, properties, opts)
