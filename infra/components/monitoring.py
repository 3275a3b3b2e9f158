"""Dashboards and alerts of a stack with observability, beside what its charts bring."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as kubernetes

from cost.resources.hourly_rates import Burn
from infra.render.monitoring import objects
from infra.render.values.observability import MONITORING
from stacks.spec import StackSpec


class Monitoring(pulumi.ComponentResource):
    """One ConfigMap of dashboards, the rules, what evaluates them, and what tells Slack."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        burn: Burn,
        *,
        provider: kubernetes.Provider,
        metrics: pulumi.Resource,
        slack_webhook_url: pulumi.Input[str] | None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`metrics`: the release that brings namespace, definitions and store."""
        super().__init__("soperator:infra:Monitoring", name, None, opts)
        after = pulumi.ResourceOptions(parent=self, provider=provider, depends_on=[metrics])
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
                opts=pulumi.ResourceOptions(parent=self, provider=provider, depends_on=needs),
            )
        self.register_outputs({})
