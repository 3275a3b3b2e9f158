"""Network disks that every worker has for itself, by GiB and month: node-local ones and images."""

from __future__ import annotations

from collections.abc import Iterator

from cost.component import CostComponent, Input, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from cost.resources.groups import Group
from stacks.node_spec import ImageDiskSpec, LocalDiskSpec, WorkerSpec


def worker_disk_lines(group: Group, book: PriceBook) -> Iterator[CostComponent]:
    """The local disks and the image disk of one worker set; other groups have none."""
    if not isinstance(group.spec, WorkerSpec):
        return
    for disk in group.spec.local_disks:
        yield _line(group, disk.name, f"{group.key}.local_disks[{disk.name}]", disk, book)
    if group.spec.image_disk is not None:
        yield _line(group, "images", f"{group.key}.image_disk", group.spec.image_disk, book)


def _line(
    group: Group, name: str, key: str, disk: LocalDiskSpec | ImageDiskSpec, book: PriceBook
) -> CostComponent:
    return simple_line(
        id=key,
        section=Section.WORKER_DISKS,
        name=f"{group.label} {name} ({disk.type.removeprefix('network-').removeprefix('ssd-')})",
        size=f"{group.count} x {disk.size_gib} GiB",
        quantity=group.min_nodes * disk.size_gib,
        quantity_high=group.max_nodes * disk.size_gib,
        price=book.find(f"disk/{disk.type}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(*group.count_keys, f"{key}.size_gib", f"{key}.type"),
        scope=Scope.BEYOND,
        nodeset=group.nodeset,
        num_per_node=disk.size_gib,
        quantity_factors=(
            group.count_input,
            Input(name="GiB of a disk", value=str(disk.size_gib), source=f"{key}.size_gib"),
        ),
    )
