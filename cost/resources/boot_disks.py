"""Boot disks of the nodes, by GiB and month; a node that is not there has no disk."""

from __future__ import annotations

from cost.component import CostComponent, Input, Section, simple_line
from cost.price_book import PriceBook, Unit
from cost.resources.groups import Group


def boot_disk_line(group: Group, book: PriceBook) -> CostComponent:
    """The boot disks of one group."""
    disk = group.spec.boot_disk
    key = f"{group.key}.boot_disk"
    return simple_line(
        id=key,
        section=Section.BOOT_DISKS,
        name=f"{group.label} ({disk.type.removeprefix('network-').removeprefix('ssd-')})",
        size=f"{group.count} x {disk.size_gib} GiB",
        quantity=group.min_nodes * disk.size_gib,
        quantity_high=group.max_nodes * disk.size_gib,
        price=book.find(f"disk/{disk.type}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(*group.count_keys, f"{key}.size_gib", f"{key}.type"),
        nodeset=group.nodeset,
        num_per_node=disk.size_gib,
        quantity_factors=(
            group.count_input,
            Input(name="GiB of a disk", value=str(disk.size_gib), source=f"{key}.size_gib"),
        ),
    )
