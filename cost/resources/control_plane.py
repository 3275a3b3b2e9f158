"""The managed Kubernetes control plane, by the cluster and hour."""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.spec import StackSpec


def control_plane_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """The control plane of the stack's one cluster."""
    return simple_line(
        id="cluster.control_plane",
        section=Section.KUBERNETES,
        name="control plane",
        size=f"1, etcd of {spec.cluster.etcd_size}",
        quantity=1,
        price=book.find("mk8s/control-plane", Unit.CLUSTER_HOUR),
        per="cluster/h",
        unit="clusters",
        keys=("cluster.etcd_size",),
        scope=Scope.BEYOND,
    )
