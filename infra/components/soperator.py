"""Soperator and what it needs, as pinned Helm releases in dependency order."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.releases import make_releases
from infra.render.charts import platform_charts
from stacks.spec import StackSpec


class Soperator(pulumi.ComponentResource):
    """Prerequisites, the operator, its checks controller and observability."""

    releases: Mapping[str, pulumi.Resource]
    """Release by name: what the charts of the Slurm cluster wait for."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        provider: kubernetes.Provider,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:Soperator", name, None, opts)
        self.releases = make_releases(
            self, platform_charts(spec), provider=provider, kubeconfig=kubeconfig
        )
        self.register_outputs({})
