"""The custom resources of Soperator, ahead of its charts."""

from __future__ import annotations

import pulumi

from infra.render.charts import OPERATOR_CHART
from stacks.spec import StackSpec


class CustomResources(pulumi.CustomResource):
    """Definitions of the declared Soperator, upgraded before the first release of its version."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        properties = {
            "chart": OPERATOR_CHART,
            "version": spec.cluster.soperator_version,
            "kubeconfig": kubeconfig,
        }
        super().__init__(
            "soperator:kube:CustomResources", f"{name}-custom-resources", properties, opts
        )
