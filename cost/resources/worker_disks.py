"""Network disks that every worker has for itself: node-local ones and images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cost.component import CostComponent, Scope, Section
from cost.price_book import PriceBook
from cost.resources.groups import Group
from cost.resources.node_disks import node_disk_line
from stacks.node_spec import WorkerSpec


def worker_disk_lines(group: Group, book: PriceBook) -> Iterator[CostComponent]:
    """The local disks and the image disk of one nodeset; other groups have none."""
    if not isinstance(group.spec, WorkerSpec):
        return
    line = partial(node_disk_line, group, section=Section.WORKER_DISKS, scope=Scope.BEYOND)
    for disk in group.spec.local_disks:
        key = f"{group.key}.local_disks[{disk.name}]"
        yield line(disk, book, key=key, label=f"{group.label} {disk.name}")
    image = group.spec.image_disk
    if image is not None:
        yield line(image, book, key=f"{group.key}.image_disk", label=f"{group.label} images")
