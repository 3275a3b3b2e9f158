"""What a stack pays for, line by line, in the order of the bill: components(spec, book).

Owns the order. The lines themselves are in resources/, one kind of resource a file.
"""

from __future__ import annotations

from cost.component import CostComponent, Input, Rate, Scope, Section, Term
from cost.price_book import PriceBook
from cost.resources.boot_disks import boot_disk_line
from cost.resources.chart_volumes import chart_volume_line
from cost.resources.control_plane import control_plane_line
from cost.resources.filesystems import filesystem_lines
from cost.resources.groups import groups
from cost.resources.network import allocation_line, login_address_line, node_address_line
from cost.resources.nfs_server import nfs_server_lines
from cost.resources.nodes import node_line, node_rate
from cost.resources.object_storage import object_storage_lines, state_bucket_line
from cost.resources.registry import registry_line
from cost.resources.worker_disks import worker_disk_lines
from stacks.spec import StackSpec

__all__ = [
    "CostComponent",
    "Input",
    "Rate",
    "Scope",
    "Section",
    "Term",
    "components",
    "node_rate",
]


def components(spec: StackSpec, book: PriceBook) -> tuple[CostComponent, ...]:
    """Every line of the stack's bill: those that seed 000 lists, then those beyond it."""
    declared = tuple(groups(spec))
    return (
        *(node_line(group, book) for group in declared),
        *(boot_disk_line(group, book) for group in declared),
        *filesystem_lines(spec, book),
        *object_storage_lines(spec, book),
        *(line for group in declared for line in worker_disk_lines(group, book)),
        login_address_line(spec, book),
        *(node_address_line(group, book) for group in declared if group.spec.public_ip),
        control_plane_line(spec, book),
        chart_volume_line(spec, book),
        *nfs_server_lines(spec, book),
        state_bucket_line(book),
        registry_line(spec, book),
        allocation_line(spec, book),
    )
