"""Worker presets of a region with what a node costs: worker_choices(region, book).

Owns the order and the text of the list; platforms are facts of stacks/catalog.py, prices of cost/.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from cost.components import node_rate
from cost.price_book import HOURS_PER_MONTH, PriceBook, UnknownPrice
from stacks.catalog import FABRICS, PLATFORMS, Preset
from stacks.node_spec import BootDiskSpec, NodeGroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One platform and preset that workers may have in the region."""

    platform: str
    preset: Preset
    usd_per_hour: Decimal | None
    """For one node on demand, without its disk; None where no price is known."""
    fabrics: tuple[str, ...]
    """Fabrics that its nodes may join there."""

    @property
    def name(self) -> str:
        """As the option takes it, such as `gpu-h100-sxm/8gpu-128vcpu-1600gb`."""
        return f"{self.platform}/{self.preset.name}"

    @property
    def price(self) -> str:
        """US dollars an hour and a month for one node, as printed."""
        if self.usd_per_hour is None:
            return "UNPRICED"
        month = self.usd_per_hour * HOURS_PER_MONTH
        return f"${self.usd_per_hour:,.2f} an hour, ${month:,.2f} a month"


def worker_choices(region: str, book: PriceBook) -> tuple[Choice, ...]:
    """Every preset with GPUs in the region, then those without."""
    found: list[Choice] = []
    for platform in PLATFORMS.values():
        if region not in platform.regions:
            continue
        for preset in platform.presets.values():
            group = NodeGroupSpec(
                platform=platform.name,
                preset=preset.name,
                boot_disk=BootDiskSpec(size_gib=512),
                min_nodes=1,
                max_nodes=1,
            )
            rate = node_rate(group, book)
            fabrics = tuple(
                fabric.name
                for fabric in FABRICS.values()
                if preset.allows_gpu_cluster
                and (fabric.region, fabric.platform) == (region, platform.name)
            )
            found.append(
                Choice(
                    platform=platform.name,
                    preset=preset,
                    usd_per_hour=None if isinstance(rate, UnknownPrice) else rate.usd,
                    fabrics=fabrics,
                )
            )
    return tuple(sorted(found, key=lambda choice: not choice.preset.gpus))
