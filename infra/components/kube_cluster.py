"""The mk8s cluster and the access to it."""

from __future__ import annotations

import pulumi

from infra.components.base import child
from infra.render.kube_cluster import kube_cluster_spec, kubeconfig
from stacks.spec import StackSpec


class KubeCluster(pulumi.ComponentResource):
    """Managed Kubernetes control plane, reached over its public or its private endpoint."""

    cluster_id: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    """Secret; its token is made on demand by `soperator kube-token`."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        subnet_id: pulumi.Input[str],
        outlived_by: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:KubeCluster", name, None, opts)
        cluster = child(
            self,
            "nebius:mk8s/v1:Cluster",
            f"{name}-kube",
            parent_id=spec.nebius.project_id,
            spec=kube_cluster_spec(spec, subnet_id=subnet_id),
            # While it lives, its balancer holds the address of the login service, or takes it anew.
            opts=pulumi.ResourceOptions(depends_on=outlived_by),
        )
        self.cluster_id = cluster.id
        endpoint = "public_endpoint" if spec.cluster.public_endpoint else "private_endpoint"
        self.kubeconfig = pulumi.Output.secret(
            cluster.status.apply(
                lambda status: kubeconfig(
                    name=f"{name}-kube",
                    endpoint=status["control_plane"]["endpoints"][endpoint],
                    ca_certificate=status["control_plane"]["auth"]["cluster_ca_certificate"],
                )
            )
        )
        self.register_outputs({"cluster_id": self.cluster_id, "kubeconfig": self.kubeconfig})
