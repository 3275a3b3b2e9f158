"""The Slurm cluster: namespace, host key, files in the jail, and the charts of the cluster."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.pods_started import PodsStarted
from infra.components.releases import make_releases
from infra.providers.soperator.resources import KeyPair
from infra.render import login, names
from infra.render.charts import PODS_STARTED, cluster_charts
from infra.render.login import host_key_files
from infra.render.values.slurm_cluster import is_stopped
from stacks.spec import StackSpec


class SlurmCluster(pulumi.ComponentResource):
    """Slurm on the kube cluster, with a login node that this program's keys open and prove."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        provider: kubernetes.Provider,
        kubeconfig: pulumi.Input[str],
        allocation_id: pulumi.Input[str],
        host_key: KeyPair,
        deploy_key: KeyPair,
        releases: Mapping[str, pulumi.Resource],
        slack_webhook_url: pulumi.Input[str] | None = None,
        nfs_address: pulumi.Input[str] | None = None,
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
            string_data=host_key_files(host_key.private_key, host_key.public_key),
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[namespace]),
        )
        charts = cluster_charts(
            spec,
            allocation_id=allocation_id,
            ssh_public_keys=[*spec.login.ssh_public_keys, deploy_key.public_key],
            slack_webhook_url=slack_webhook_url,
            nfs_address=nfs_address,
        )
        first = [chart for chart in charts if PODS_STARTED not in chart.after]
        needs = [namespace, host_keys]
        made = make_releases(
            self,
            first,
            provider=provider,
            kubeconfig=kubeconfig,
            known=releases,
            needs=needs,
        )
        # A stopped cluster has no pods.
        if not is_stopped(spec):
            made[PODS_STARTED] = PodsStarted(
                name,
                spec,
                charts=[chart for chart in first if chart.namespace == cluster.namespace],
                host_key=host_key.public_key,
                kubeconfig=kubeconfig,
                opts=pulumi.ResourceOptions(
                    parent=self, depends_on=[made["slurm-cluster"], made["nodesets"]]
                ),
            )
        make_releases(
            self,
            [chart for chart in charts if PODS_STARTED in chart.after],
            provider=provider,
            kubeconfig=kubeconfig,
            known=made,
            needs=needs,
        )
        if spec.soperator.jail_files:
            self._jail_files(name, spec, provider, made["slurm-cluster"])
        self.register_outputs({})

    def _jail_files(
        self, name: str, spec: StackSpec, provider: kubernetes.Provider, slurm: pulumi.Resource
    ) -> None:
        place = kubernetes.meta.v1.ObjectMetaArgs(
            name=login.JAIL_FILES, namespace=spec.cluster.namespace
        )
        texts = kubernetes.core.v1.ConfigMap(
            f"{name}-{login.JAIL_FILES}",
            metadata=place,
            data=login.jail_file_texts(spec.soperator.jail_files),
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[slurm]),
        )
        kubernetes.apiextensions.CustomResource(
            f"{name}-jailed-config",
            api_version=login.JAILED_CONFIG_API,
            kind=login.JAILED_CONFIG,
            metadata=place,
            spec=login.jailed_config(spec.soperator.jail_files),
            opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[texts]),
        )
