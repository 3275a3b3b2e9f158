"""The clean-up of the kube cluster at the end of the stack."""

from __future__ import annotations

import pulumi

from infra.render.backup import namespaces
from stacks.spec import StackSpec


class Teardown(pulumi.CustomResource):
    """Deleted after every release and before the nodes; removes what no resource owns."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        cluster_id: pulumi.Input[str],
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        properties = {
            "cluster_id": cluster_id,
            "project_id": spec.nebius.project_id,
            "kubeconfig": kubeconfig,
            "namespaces": list(namespaces(spec)),
        }
        # Two at once would clean the same cluster.
        own = pulumi.ResourceOptions(delete_before_replace=True)
        merged = pulumi.ResourceOptions.merge(own, opts)
        super().__init__("soperator:kube:Teardown", f"{name}-teardown", properties, merged)
