"""One price: US dollars for one unit of one SKU, as a source gave it on a day; and what is sold.

A SKU is `<platform>/<gpu|vcpu|ram>`, `disk/<type>`, `filesystem/<type>` or one of a few services; a
node that is not billed on demand adds its kind: `/preemptible`, `/reserved`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from stacks.catalog import PLATFORMS
from stacks.errors import UserError
from stacks.spec.nodes import Billing
from stacks.spec.storage import DiskType

HOURS_PER_MONTH: Final = Decimal(730)
"""Nebius's own month (docs.nebius.com/object-storage/resources/pricing: 730 hours)."""
CURRENCY: Final = "USD"
"""The one currency: an exchange rate would be a price of its own, without a source."""


class Unit(StrEnum):
    """What one price is for."""

    GPU_HOUR = "GPU-hour"
    VCPU_HOUR = "vCPU-hour"
    GIB_HOUR = "GiB-hour"
    GIB_MONTH = "GiB-month"
    ADDRESS_HOUR = "address-hour"
    CLUSTER_HOUR = "cluster-hour"
    NODE_HOUR = "node-hour"


class Layer(StrEnum):
    """Where a price comes from; a later one wins over an earlier one."""

    BOOK = "book"
    LIVE = "live estimate"
    CONTRACT = "contract"


class PriceBookError(UserError):
    """Prices that are missing or cannot be read; one line for each problem found."""


class UnknownBookError(PriceBookError):
    """A book of no such name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one unit of one SKU, without tax."""

    sku: str
    """Such as `gpu-h100-sxm/gpu`; a kind of billing other than on demand is its last part."""
    unit: Unit
    usd: Decimal
    source: str
    date: date
    """Day from which the source says it holds, or else the day on which it was read."""
    is_undated: bool = False
    """True where the source names no day; `date` is the day on which it was read."""
    region: str | None = None
    """Region that it holds for; None holds for all."""
    currency: str = CURRENCY
    covers_vm: bool = False
    """True where a GPU's price includes the vCPUs and memory of its VM."""
    layer: Layer = Layer.BOOK

    @property
    def dated(self) -> str:
        """The day as printed: `2026-10-05`, or `undated, read on 2026-11-21`."""
        return f"undated, read on {self.date}" if self.is_undated else str(self.date)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPrice:
    """A SKU without a price."""

    sku: str
    reason: str


_NODE_PARTS: Final[Mapping[str, Unit]] = MappingProxyType(
    {"gpu": Unit.GPU_HOUR, "vcpu": Unit.VCPU_HOUR, "ram": Unit.GIB_HOUR}
)
_SERVICES: Final[Mapping[str, Unit]] = MappingProxyType(
    {
        "object-storage/standard": Unit.GIB_MONTH,
        "object-storage/enhanced-throughput": Unit.GIB_MONTH,
        "container-registry/storage": Unit.GIB_MONTH,
        "public-ip": Unit.ADDRESS_HOUR,
        "public-ip/kubernetes-endpoint": Unit.ADDRESS_HOUR,
        "mk8s/control-plane": Unit.CLUSTER_HOUR,
    }
)


def _units() -> Mapping[str, Unit]:
    units = dict(_SERVICES)
    for kind in DiskType:
        units[f"disk/{kind}"] = Unit.GIB_MONTH
        units[f"filesystem/{kind}"] = Unit.GIB_MONTH
    for platform, facts in PLATFORMS.items():
        for part, unit in _NODE_PARTS.items():
            if part != "gpu" or facts.gres_type is not None:
                for billing in Billing:
                    units[node_sku(platform, part, billing)] = unit
    return MappingProxyType(units)


def node_sku(platform: str, part: str, billing: Billing) -> str:
    """SKU of one part of a platform's nodes, such as `gpu-h100-sxm/gpu/preemptible`."""
    suffix = "" if billing is Billing.ON_DEMAND else f"/{billing}"
    return f"{platform}/{part}{suffix}"


def covers_vm(sku: str) -> bool:
    """Whether the price of this GPU includes its vCPUs and memory.

    NVLink GPUs do since 2025-10-01 (docs.nebius.com/signup-billing/billing-changes-oct-2025).
    """
    platform, _, part = sku.partition("/")
    return "-sxm" in platform and part.split("/")[0] == "gpu"


UNITS: Final = _units()
"""SKU -> the unit that it is sold by."""
