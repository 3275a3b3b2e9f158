"""One disk that every node of a group has, by GiB and month; a node that is not there has none."""

from __future__ import annotations

from cost.component import CostComponent, Input, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from cost.resources.groups import Group
from stacks.node_spec import BootDiskSpec, ImageDiskSpec, LocalDiskSpec


def node_disk_line(
    group: Group,
    disk: BootDiskSpec | LocalDiskSpec | ImageDiskSpec,
    book: PriceBook,
    *,
    key: str,
    label: str,
    section: Section,
    scope: Scope = Scope.SEED,
) -> CostComponent:
    """The line of the disk that `key` declares, for all nodes of the group."""
    return simple_line(
        id=key,
        section=section,
        name=f"{label} ({disk.type.removeprefix('network-').removeprefix('ssd-')})",
        size=f"{group.count} x {disk.size_gib} GiB",
        quantity=group.min_nodes * disk.size_gib,
        quantity_high=group.max_nodes * disk.size_gib,
        price=book.find(f"disk/{disk.type}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(*group.count_keys, f"{key}.size_gib", f"{key}.type"),
        scope=scope,
        nodeset=group.nodeset,
        num_per_node=disk.size_gib,
        quantity_factors=(
            group.count_input,
            Input(name="GiB of a disk", value=str(disk.size_gib), source=f"{key}.size_gib"),
        ),
    )
