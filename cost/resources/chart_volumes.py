"""Disks that the charts claim from the cloud's storage class, by GiB and month.

Every claim of the Soperator charts but one is bound to a declared filesystem: the database of
accounting takes a disk where the stack declares no `storage.accounting`.
"""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.chart_volumes import database_volume_gib
from stacks.spec import StackSpec
from stacks.storage_spec import DiskType


def chart_volume_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """Volumes of the charts on network SSD, the provider's default class."""
    size_gib = database_volume_gib(spec)
    return simple_line(
        id="charts.volumes",
        section=Section.KUBERNETES,
        name="volumes of the charts",
        size=f"{size_gib} GiB (accounting)" if size_gib else "none claimed",
        quantity=size_gib,
        price=book.find(f"disk/{DiskType.NETWORK_SSD}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=("slurm.accounting", "storage.accounting", "nodes.accounting"),
        scope=Scope.BEYOND,
    )
