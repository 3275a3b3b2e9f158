"""The Slurm cluster: namespace, host key, volumes, SlurmCluster and NodeSets."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.soperator import release
from infra.keys import KeyPair
from infra.render import names
from infra.render.helm_values import nodesets_values, slurm_cluster_values, storage_values
from stacks.spec import StackSpec


class SlurmCluster(pulumi.ComponentResource):
    """Slurm on the kube cluster, with a login node that this program's keys open and prove."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        provider: kubernetes.Provider,
        allocation_id: pulumi.Input[str],
        host_key: KeyPair,
        deploy_key: KeyPair,
        after: list[pulumi.Resource],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:SlurmCluster", name, None, opts)
        mine = pulumi.ResourceOptions(parent=self, provider=provider)
        cluster = spec.cluster
        namespace = kubernetes.core.v1.Namespace(
            f"{name}-namespace", metadata={"name": cluster.namespace}, opts=mine
        )
        host_keys = kubernetes.core.v1.Secret(
            f"{name}-{names.LOGIN_HOST_KEYS}",
            metadata={"name": names.LOGIN_HOST_KEYS, "namespace": cluster.namespace},
            string_data={
                "ssh_host_ed25519_key": host_key.private_key,
                "ssh_host_ed25519_key.pub": host_key.public_key,
            },
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[namespace]),
        )
        keys = [*spec.login.ssh_public_keys, deploy_key.public_key]
        storage = release(
            self,
            "helm-slurm-cluster-storage",
            "slurm-cluster-storage",
            version=cluster.soperator_version,
            namespace=cluster.namespace,
            values=storage_values(spec),
            provider=provider,
            after=[*after, namespace],
        )
        slurm = release(
            self,
            "helm-slurm-cluster",
            "slurm-cluster",
            version=cluster.soperator_version,
            namespace=cluster.namespace,
            values=slurm_cluster_values(spec, allocation_id=allocation_id, ssh_public_keys=keys),
            provider=provider,
            after=[storage, host_keys],
        )
        release(
            self,
            "helm-nodesets",
            "nodesets",
            version=cluster.soperator_version,
            namespace=cluster.namespace,
            values=nodesets_values(spec),
            provider=provider,
            after=[slurm],
        )
        self.register_outputs({})
