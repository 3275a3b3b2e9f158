"""Boot disks of the nodes."""

from __future__ import annotations

from cost.component import CostComponent, Section
from cost.price_book import PriceBook
from cost.resources.groups import Group
from cost.resources.node_disks import node_disk_line


def boot_disk_line(group: Group, book: PriceBook) -> CostComponent:
    """The boot disks of one group."""
    return node_disk_line(
        group,
        group.spec.boot_disk,
        book,
        key=f"{group.key}.boot_disk",
        label=group.label,
        section=Section.BOOT_DISKS,
    )
