"""The mk8s cluster and the access to it."""

from __future__ import annotations

import pulumi

from infra.components.base import child
from infra.render.kubeconfig import kubeconfig
from stacks.spec import StackSpec


class KubeCluster(pulumi.ComponentResource):
    """Managed Kubernetes control plane with a public endpoint."""

    cluster_id: pulumi.Output[str]
    kubeconfig: pulumi.Output[str]
    """Secret; its token is made on demand by `soperator kube-token`."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        subnet_id: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:KubeCluster", name, None, opts)
        cluster = child(
            self,
            "nebius:mk8s/v1:Cluster",
            f"{name}-kube",
            parent_id=spec.nebius.project_id,
            spec={
                "control_plane": {
                    "version": spec.cluster.kubernetes_version,
                    "subnet_id": subnet_id,
                    "etcd_cluster_size": spec.cluster.etcd_size,
                    "endpoints": {"public_endpoint": {}},
                }
            },
        )
        self.cluster_id = cluster.id
        self.kubeconfig = pulumi.Output.secret(
            cluster.status.apply(
                lambda status: kubeconfig(
                    name=f"{name}-kube",
                    endpoint=status["control_plane"]["endpoints"]["public_endpoint"],
                    ca_certificate=status["control_plane"]["auth"]["cluster_ca_certificate"],
                )
            )
        )
        self.register_outputs({"cluster_id": self.cluster_id, "kubeconfig": self.kubeconfig})
