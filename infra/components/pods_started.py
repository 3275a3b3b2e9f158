"""The wait for the pods of the Slurm cluster, which ends early where they cannot start."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pulumi

from infra.render.charts import PODS_STARTED, Chart
from infra.render.login import awaited_nodes
from infra.render.nodes import node_labels
from infra.render.values.nodesets import is_elastic
from stacks.spec import StackSpec

_PODS = ("controller-0", "login-0")


def awaited_pods(spec: StackSpec) -> tuple[list[str], list[str]]:
    """Pods that must answer: of the system and of the workers that run from the start.

    And those that must where they are there: of an elastic set, whose nodes may sleep.
    """
    elastic = {each.name for each in spec.nodes.workers if is_elastic(each)}
    workers = awaited_nodes(spec)
    sleepers = [name for name in workers if name.rpartition("-")[0] in elastic]
    return [*_PODS, *(name for name in workers if name not in sleepers)], sleepers


def _made_of(charts: Sequence[Chart], host_key: pulumi.Input[str]) -> pulumi.Output[str]:
    """A digest of what the pods come from: where it is another one, they start anew."""
    content = {each.release: [each.version, dict(each.values)] for each in charts}
    text = pulumi.Output.json_dumps([content, host_key], sort_keys=True)
    return text.apply(lambda known: hashlib.sha256(known.encode()).hexdigest())


class PodsStarted(pulumi.CustomResource):
    """Made once controller, login and workers answer and no pod is kept from starting."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
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
        super().__init__("soperator:kube:PodsStarted", f"{name}-{PODS_STARTED}", properties, opts)
