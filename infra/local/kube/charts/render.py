"""Chart and values -> Kubernetes objects, for the Soperator charts that the local stack knows.

Owns the table of known charts. A chart outside the table is recorded, not rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.local.kube.charts import slurm_cluster
from infra.local.kube.charts.values import ChartError, Object, Release, merge
from infra.local.kube.crd import load_crds

CHART_VERSION: Final = "4.1.7"
"""The only version whose values these renderers know."""
CRDS_CHART: Final = "helm-soperator-crds"

_RENDERERS: Final[Mapping[str, Callable[[Release, dict[str, Any]], list[Object]]]] = {
    "helm-slurm-cluster-storage": slurm_cluster.render_storage,
    "helm-slurm-cluster": slurm_cluster.render,
    "helm-nodesets": slurm_cluster.render_nodesets,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What a release becomes on the local stack."""

    objects: list[Object]
    recorded_only: bool
    unused: tuple[str, ...] = ()
    """Paths of given values that make no object here."""


def render(chart: str, version: str, release: Release, values: Mapping[str, Any]) -> Rendered:
    """The objects of a release; none for a chart that is only recorded."""
    chart = chart.rpartition("/")[2]
    if chart == CRDS_CHART:
        return Rendered(objects=load_crds(), recorded_only=False)
    renderer = _RENDERERS.get(chart)
    if renderer is None:
        return Rendered(objects=[], recorded_only=True)
    if version != CHART_VERSION:
        raise ChartError(
            f"{chart}: version {version!r} is not known to the local stack (has: {CHART_VERSION}); "
            "set cluster.soperator_version in the stack file"
        )
    merged = merge(chart, values)
    return Rendered(
        objects=renderer(release, merged.values), recorded_only=False, unused=merged.unused
    )
