"""Soperator as pinned Helm releases, and the Slurm cluster that it makes of its custom resources.

Of the Slurm cluster: namespace, host key, files in the jail, charts, and the wait for its pods.
With it come the user's door to it, and what watches it where the stack has observability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pulumi
import pulumi_command as command
import pulumi_kubernetes as kubernetes

from cost.resources.estimate import Estimate
from infra.components.base import Kubernetes, Part
from infra.components.kube_cluster import Network
from infra.components.releases import make_releases
from infra.providers.engine.resources import KeyPair
from infra.render import login, names
from infra.render.charts import (
    MONITORING,
    PODS_STARTED,
    Chart,
    cluster_charts,
    is_stopped,
    platform_charts,
)
from infra.render.delivery import code_files, hash_files
from infra.render.login import (
    activate_script,
    awaited_nodes,
    host_key_files,
    places_script,
    ready_script,
    teams_script,
    users_script,
    write_release,
)
from infra.render.monitoring import objects
from infra.render.nodes import node_labels
from stacks.spec import StackSpec


class Soperator(Part):
    """Prerequisites, the operator, its checks controller and observability."""

    releases: Mapping[str, pulumi.Resource]
    """Release by name: what the charts of the Slurm cluster wait for."""

    def __init__(
        self,
        spec: StackSpec,
        provider: Kubernetes,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        self.releases = make_releases(self, platform_charts(spec), provider)
        self.register_outputs({})


class SlurmCluster(Part):
    """Slurm on the kube cluster, with a login node that this program's keys open and prove."""

    def __init__(
        self,
        spec: StackSpec,
        provider: Kubernetes,
        network: Network,
        host_key: KeyPair,
        deploy_key: KeyPair,
        releases: Mapping[str, pulumi.Resource],
        *,
        slack_webhook_url: pulumi.Input[str] | None = None,
        nfs_address: pulumi.Input[str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        mine = self._after(provider=provider)
        name, cluster = spec.name, spec.cluster
        namespace = kubernetes.core.v1.Namespace(
            f"{name}-namespace", metadata={"name": cluster.namespace}, opts=mine
        )
        host_keys = kubernetes.core.v1.Secret(
            f"{name}-{names.LOGIN_HOST_KEYS}",
            metadata={"name": names.LOGIN_HOST_KEYS, "namespace": cluster.namespace},
            string_data=host_key_files(host_key.private_key, host_key.public_key),
            opts=self._after(namespace, provider=provider),
        )
        charts = cluster_charts(
            spec,
            allocation_id=network.allocation_id,
            ssh_public_keys=[*spec.login.ssh_public_keys, deploy_key.public_key],
            slack_webhook_url=slack_webhook_url,
            nfs_address=nfs_address,
        )
        first = [chart for chart in charts if PODS_STARTED not in chart.after]
        make = partial(make_releases, self, provider=provider, needs=[namespace, host_keys])
        made = make(first, known=releases)
        # A stopped cluster has no pods.
        if not is_stopped(spec):
            made[PODS_STARTED] = PodsStarted(
                spec,
                [chart for chart in first if chart.namespace == cluster.namespace],
                host_key.public_key,
                provider.kubeconfig,
                self._after(made["slurm-cluster"], made["nodesets"]),
            )
        make([chart for chart in charts if PODS_STARTED in chart.after], known=made)
        if spec.soperator.jail_files:
            self._jail_files(spec, provider, made["slurm-cluster"])
        self.register_outputs({})

    def _jail_files(self, spec: StackSpec, provider: Kubernetes, slurm: pulumi.Resource) -> None:
        place = kubernetes.meta.v1.ObjectMetaArgs(
            name=login.JAIL_FILES, namespace=spec.cluster.namespace
        )
        texts = kubernetes.core.v1.ConfigMap(
            f"{spec.name}-{login.JAIL_FILES}",
            metadata=place,
            data=login.jail_file_texts(spec.soperator.jail_files),
            opts=self._after(slurm, provider=provider),
        )
        kubernetes.apiextensions.CustomResource(
            f"{spec.name}-jailed-config",
            api_version=login.JAILED_CONFIG_API,
            kind=login.JAILED_CONFIG,
            metadata=place,
            spec=login.jailed_config(spec.soperator.jail_files),
            opts=self._after(texts, provider=provider),
        )


def awaited_pods(spec: StackSpec) -> tuple[list[str], list[str]]:
    """Pods that must answer: of the system and of the workers that run from the start.

    And those that must where they are there: of an elastic set, whose nodes may sleep.
    """
    elastic = {each.name for each in spec.nodes.workers if each.is_elastic}
    workers = awaited_nodes(spec)
    sleepers = [name for name in workers if name.rpartition("-")[0] in elastic]
    logins = (f"login-{number}" for number in range(spec.nodes.login.min_nodes))
    awake = (name for name in workers if name not in sleepers)
    return ["controller-0", *logins, *awake], sleepers


def _made_of(charts: Sequence[Chart], host_key: pulumi.Input[str]) -> pulumi.Output[str]:
    """A digest of what the pods come from: where it is another one, they start anew."""
    content = {each.release: [each.version, dict(each.values)] for each in charts}
    text = pulumi.Output.json_dumps([content, host_key], sort_keys=True)
    return text.apply(lambda known: hashlib.sha256(known.encode()).hexdigest())


class PodsStarted(pulumi.CustomResource):
    """Made once controller, login and workers answer and no pod is kept from starting."""

    def __init__(
        self,
        spec: StackSpec,
        charts: Sequence[Chart],
        host_key: pulumi.Input[str],
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        pods, may_sleep = awaited_pods(spec)
        properties = {
            "cluster": spec.cluster.slurm_cluster_name,
            "namespace": spec.cluster.namespace,
            "pods": pods,
            "may_sleep": may_sleep,
            "node_labels": node_labels(spec),
            "made_of": _made_of(charts, host_key),
            "kubeconfig": kubeconfig,
        }
        super().__init__(
            "soperator:kube:PodsStarted", f"{spec.name}-{PODS_STARTED}", properties, opts
        )


# A real login node appears minutes after its release is applied.
_DIAL_ATTEMPTS = 240
_DIAL_TIMEOUT_S = 15


class Login(Part):
    """SSH with the deploy key and the pinned host key: readiness, members, places, one release."""

    code_hash: str
    ready: pulumi.Output[str]
    """What `sinfo` proved."""

    def __init__(
        self,
        spec: StackSpec,
        network: Network,
        host_key: KeyPair,
        deploy_key: KeyPair,
        *,
        root: Path,
        build_folder: Path,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        connection = command.remote.ConnectionArgs(
            host=network.login_ip,
            port=spec.login.ssh_port,
            user="root",
            private_key=deploy_key.private_key,
            host_key=host_key.public_key,
            dial_error_limit=_DIAL_ATTEMPTS,
            per_dial_timeout=_DIAL_TIMEOUT_S,
        )

        def run(part: str, script: str, *needs: pulumi.Resource) -> command.remote.Command:
            return command.remote.Command(
                f"{spec.name}-{part}",
                connection=connection,
                create=script,
                # sshd of a login node takes LANG and LC_* only: each update would warn of it.
                add_previous_output_in_env=False,
                opts=self._after(*needs),
            )

        ready = run("ready", ready_script(spec))
        # They compare with what is there, so they run for a stack without members too: a last one
        # that is no longer declared is removed.
        users = run("users", users_script(spec, keys_later=True), ready)
        places = run("places", places_script(spec), users)
        needs: list[pulumi.Resource] = []
        if spec.slurm.accounting:
            needs.append(run("teams", teams_script(spec), users))
        files = code_files(root, spec)
        self.code_hash = hash_files(files)
        code = command.remote.CopyToRemote(
            f"{spec.name}-code",
            connection=connection,
            source=pulumi.FileArchive(write_release(build_folder / spec.name, files, root)),
            remote_path=f"{spec.code_path}/releases/{self.code_hash}",
            opts=self._after(places),
        )
        # Its schedules are submitted by the deployer, whom Slurm knows by the teams.
        live = run("current", activate_script(spec.code_path, self.code_hash), code, *needs)
        # Last: no user can keep the others from new code by what is in ~/.ssh.
        run("keys", users_script(spec), live)
        self.ready = ready.stdout
        self.register_outputs({"code_hash": self.code_hash})


class Monitoring(Part):
    """One ConfigMap of dashboards, the rules, what evaluates them, and what tells Slack."""

    def __init__(
        self,
        spec: StackSpec,
        burn: Estimate,
        provider: Kubernetes,
        *,
        metrics: pulumi.Resource,
        slack_webhook_url: pulumi.Input[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`metrics`: the release that brings namespace, definitions and store."""
        super().__init__(spec, opts)
        name = spec.name
        after = self._after(metrics, provider=provider)
        kubernetes.core.v1.ConfigMap(f"{name}-dashboards", **objects.config_map(burn), opts=after)
        needs: list[pulumi.Resource] = [metrics]
        if spec.soperator.slack_notifier:
            assert slack_webhook_url is not None, "the program refuses a notifier without it"
            needs.append(
                kubernetes.core.v1.Secret(
                    f"{name}-slack",
                    metadata={"name": objects.WEBHOOK_SECRET, "namespace": MONITORING},
                    string_data={objects.WEBHOOK_KEY: slack_webhook_url},
                    opts=after,
                )
            )
        for each in objects.custom_resources(spec, burn):
            kubernetes.apiextensions.CustomResource(
                f"{name}-{each['kind'].lower()}",
                api_version=each["apiVersion"],
                kind=each["kind"],
                metadata=each["metadata"],
                spec=each["spec"],
                opts=self._after(*needs, provider=provider),
            )
        self.register_outputs({})
