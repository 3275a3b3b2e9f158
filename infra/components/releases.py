"""Helm releases out of what infra/render/charts.py lists: one resource a chart, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.base import Kubernetes
from infra.render.charts import Chart

_MADE_ANEW = "of this stack installed it; made anew over its own objects"
_CHANGED_AGAIN = "was killed while it changed it; changed again from its last whole revision"


def make_releases(
    parent: pulumi.Resource,
    charts: Iterable[Chart],
    provider: Kubernetes,
    *,
    known: Mapping[str, pulumi.Resource] | None = None,
    needs: Sequence[pulumi.Resource] = (),
) -> dict[str, pulumi.Resource]:
    """Release by name, with those already `known`; each waits for `needs` and what it follows.

    A chart may name releases that this stack does not have: what is not there is not waited for.
    One with definitions gets them first. One that the state does not have and
    the cluster has already is made anew over its own objects; one that a killed run left half
    changed is changed again.
    """
    made: dict[str, pulumi.Resource] = dict(known or {})
    hooks = pulumi.ResourceHookBinding(
        before_create=[_dropping(provider, "drop_unknown", _MADE_ANEW)],
        before_update=[_dropping(provider, "drop_unfinished", _CHANGED_AGAIN)],
    )
    for chart in charts:
        definitions: list[pulumi.Resource] = []
        if chart.definitions is not None:
            wanted = {
                "chart": chart.chart,
                **({} if chart.repository is None else {"repository": chart.repository}),
                "version": chart.version,
                "group": chart.definitions,
                "kubeconfig": provider.kubeconfig,
            }
            definitions.append(
                pulumi.CustomResource(
                    "soperator:kube:CustomResources",
                    f"{chart.release}-custom-resources",
                    wanted,
                    pulumi.ResourceOptions(parent=parent),
                )
            )
        made[chart.release] = kubernetes.helm.v3.Release(
            chart.release,
            name=chart.release,
            chart=chart.chart,
            version=chart.version,
            namespace=chart.namespace,
            create_namespace=chart.creates_namespace,
            repository_opts=None if chart.repository is None else {"repo": chart.repository},
            timeout=chart.timeout_s,
            skip_crds=bool(definitions) or None,
            values=dict(chart.values),
            opts=pulumi.ResourceOptions(
                parent=parent,
                provider=provider,
                hooks=hooks,
                depends_on=[
                    *needs,
                    *definitions,
                    *(made[name] for name in chart.after if name in made),
                ],
            ),
        )
    return made


def _dropping(
    provider: Kubernetes, what: Literal["drop_unknown", "drop_unfinished"], told: str
) -> Callable[[pulumi.ResourceHookArgs], Awaitable[None]]:
    """Takes records of Helm away where the engine is about to make or change a release."""

    async def drop(args: pulumi.ResourceHookArgs) -> None:
        # Here, because a preview needs none of it.
        from infra.clients import kube

        content = await pulumi.Output.from_input(provider.kubeconfig).future()
        release = {key: (args.new_inputs or {})[key] for key in ("name", "namespace")}
        client = kube.KubeClient(kube.read_kubeconfig(str(content)))
        try:
            gone = await asyncio.to_thread(
                getattr(kube, what),
                client,
                pulumi.get_stack(),
                release=release["name"],
                namespace=release["namespace"],
            )
        finally:
            client.close()
        if gone:
            pulumi.log.info(f"release {release['name']}: an earlier run {told}")

    return drop
