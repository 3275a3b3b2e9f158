"""Disks that the charts claim from the cloud's storage class, by GiB and month.

Claims of Soperator's own charts are bound to declared filesystems; metrics, logs and an NFS server
of `/home` take disks.
"""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.chart_volumes import home_volume_gib, observability_volumes
from stacks.spec import StackSpec
from stacks.storage_spec import DiskType


def chart_volume_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """Volumes of the charts on network SSD, the provider's default class."""
    claims = {"home": home_volume_gib(spec), **observability_volumes(spec)}
    claimed = [name for name, gib in claims.items() if gib]
    size_gib = sum(claims.values())
    return simple_line(
        id="charts.volumes",
        section=Section.KUBERNETES,
        name="volumes of the charts",
        size=f"{size_gib} GiB ({', '.join(claimed)})" if size_gib else "none claimed",
        quantity=size_gib,
        price=book.find(f"disk/{DiskType.NETWORK_SSD}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=("soperator.observability", "soperator.nfs_home"),
        scope=Scope.BEYOND,
    )
