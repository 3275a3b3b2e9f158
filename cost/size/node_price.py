"""What one node of a preset costs where it is cheapest: cheapest_rate(book, platform, preset)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from cost.component import Rate
from cost.price_book import PriceBook, UnknownPrice
from cost.resources.nodes import node_rate
from stacks.catalog import PLATFORMS
from stacks.node_spec import Billing, BootDiskSpec, NodeGroupSpec


def cheapest_rate(
    book: PriceBook,
    platform: str,
    preset: str,
    billing: Billing = Billing.ON_DEMAND,
    *,
    regions: Sequence[str] | None = None,
) -> tuple[Rate | UnknownPrice, str]:
    """US dollars an hour of a node without its disks, and its region: the first of equal ones.

    Of the given regions, or of all that have the platform.
    """
    group = NodeGroupSpec(
        platform=platform,
        preset=preset,
        boot_disk=BootDiskSpec(size_gib=0),
        min_nodes=1,
        max_nodes=1,
        billing=billing,
    )
    found = [
        (node_rate(group, book.in_region(region)), region)
        for region in (PLATFORMS[platform].regions if regions is None else regions)
    ]
    known = [each for each in found if not isinstance(each[0], UnknownPrice)]
    return min(known, key=lambda each: _usd(each[0])) if known else found[0]


def _usd(rate: Rate | UnknownPrice) -> Decimal:
    return Decimal("Infinity") if isinstance(rate, UnknownPrice) else rate.usd
