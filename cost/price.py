"""One price: US dollars for one unit of one SKU, as a source gave it on a day.

Owns units, kinds of billing and what a price knows of itself. Does not own files or look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from stacks.errors import UserError

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
