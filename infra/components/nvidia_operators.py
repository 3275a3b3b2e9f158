"""NVIDIA's network and GPU operators, for node images without drivers."""

from __future__ import annotations

import pulumi

from infra.components.base import child
from infra.render.kube_cluster import nvidia_operators
from stacks.spec import StackSpec


class NvidiaOperators(pulumi.ComponentResource):
    """One application after the other: drivers of the network first, then those of the GPUs."""

    releases: tuple[pulumi.Resource, ...]
    """In the order of their installation; empty where the image brings the drivers."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        cluster_id: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:NvidiaOperators", name, None, opts)
        releases: list[pulumi.Resource] = []
        for operator in nvidia_operators(spec):
            releases.append(
                child(
                    self,
                    "nebius:applications/v1alpha1:K8sRelease",
                    f"{name}-{operator.name}",
                    parent_id=spec.nebius.project_id,
                    spec=operator.spec(cluster_id),
                    opts=pulumi.ResourceOptions(depends_on=releases[-1:]),
                )
            )
        self.releases = tuple(releases)
        self.register_outputs({})
