"""Helm releases out of what infra/render/charts.py lists: one resource a chart, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Literal

import pulumi
import pulumi_kubernetes as kubernetes

from infra.render.charts import Chart

_MADE_ANEW = "of this stack installed it; made anew over its own objects"
_CHANGED_AGAIN = "was killed while it changed it; changed again from its last whole revision"


class CustomResources(pulumi.CustomResource):
    """Definitions of a chart's crds/, upgraded before the release of its version."""

    def __init__(
        self,
        chart: Chart,
        *,
        kubeconfig: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        properties = {
            "chart": chart.chart,
            **({} if chart.repository is None else {"repository": chart.repository}),
            "version": chart.version,
            "group": chart.definitions,
            "kubeconfig": kubeconfig,
        }
        name = f"{chart.release}-custom-resources"
        super().__init__("soperator:kube:CustomResources", name, properties, opts)


def make_releases(
    parent: pulumi.Resource,
    charts: Iterable[Chart],
    *,
    provider: kubernetes.Provider,
    kubeconfig: pulumi.Input[str],
    known: Mapping[str, pulumi.Resource] | None = None,
    needs: Sequence[pulumi.Resource] = (),
) -> dict[str, pulumi.Resource]:
    """Release by name, with those already `known`; each waits for `needs` and what it follows.

    A chart may name releases that this stack does not have: what is not there is not waited for.
    One with definitions gets them first, over `kubeconfig`. One that the state does not have and
    the cluster has already is made anew over its own objects; one that a killed run left half
    changed is changed again.
    """
    made: dict[str, pulumi.Resource] = dict(known or {})
    hooks = pulumi.ResourceHookBinding(
        before_create=[_dropping(kubeconfig, "drop_unknown", _MADE_ANEW)],
        before_update=[_dropping(kubeconfig, "drop_unfinished", _CHANGED_AGAIN)],
    )
    for chart in charts:
        definitions: list[pulumi.Resource] = []
        if chart.definitions is not None:
            opts = pulumi.ResourceOptions(parent=parent)
            definitions = [CustomResources(chart, kubeconfig=kubeconfig, opts=opts)]
        made[chart.release] = kubernetes.helm.v3.Release(
            chart.release,
            kubernetes.helm.v3.ReleaseArgs(
                name=chart.release,
                chart=chart.chart,
                version=chart.version,
                namespace=chart.namespace,
                create_namespace=chart.creates_namespace,
                repository_opts=None
                if chart.repository is None
                else kubernetes.helm.v3.RepositoryOptsArgs(repo=chart.repository),
                timeout=chart.timeout_s,
                skip_crds=bool(definitions) or None,
                values=dict(chart.values),
            ),
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
    kubeconfig: pulumi.Input[str], what: Literal["drop_unknown", "drop_unfinished"], told: str
) -> Callable[[pulumi.ResourceHookArgs], Awaitable[None]]:
    """Runs where the engine is about to make or change a release, and in no preview."""

    async def drop(args: pulumi.ResourceHookArgs) -> None:
        if await _drop(kubeconfig, args, what):
            pulumi.log.info(f"release {(args.new_inputs or {})['name']}: an earlier run {told}")

    return drop


async def _drop(
    kubeconfig: pulumi.Input[str],
    args: pulumi.ResourceHookArgs,
    what: Literal["drop_unknown", "drop_unfinished"],
) -> list[str]:
    """Names of the records of Helm that went."""
    # Here, because a preview needs none of it.
    from infra.clients import kube
    from infra.clients.kube import KubeClient, read_kubeconfig

    content = await pulumi.Output.from_input(kubeconfig).future()
    inputs = args.new_inputs or {}
    client = KubeClient(read_kubeconfig(str(content)))
    try:
        return await asyncio.to_thread(
            getattr(kube, what),
            client,
            pulumi.get_stack(),
            release=inputs["name"],
            namespace=inputs["namespace"],
        )
    finally:
        client.close()
