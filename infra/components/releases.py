"""Helm releases out of what infra/render/charts.py lists: one resource a chart, in its order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.custom_resources import CustomResources
from infra.render.charts import Chart


def make_releases(
    parent: pulumi.Resource,
    charts: Iterable[Chart],
    *,
    provider: kubernetes.Provider,
    known: Mapping[str, pulumi.Resource] | None = None,
    needs: Sequence[pulumi.Resource] = (),
    kubeconfig: pulumi.Input[str] | None = None,
) -> dict[str, pulumi.Resource]:
    """Release by name, with those already `known`; each waits for `needs` and what it follows.

    A chart may name releases that this stack does not have: what is not there is not waited for.
    One with definitions gets them first, over `kubeconfig`.
    """
    made: dict[str, pulumi.Resource] = dict(known or {})
    for chart in charts:
        definitions: list[pulumi.Resource] = []
        if chart.definitions is not None:
            assert kubeconfig is not None, f"{chart.release} has definitions"
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
                depends_on=[
                    *needs,
                    *definitions,
                    *(made[name] for name in chart.after if name in made),
                ],
            ),
        )
    return made
