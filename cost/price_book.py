"""Which price is used: PriceBook.load(name).in_region(region).find(sku, unit).

A SKU may have several readings. Of those that hold in the region, the newest of the highest layer
is used; one whose source is undated only where no dated one is. A price that is not known is a
state of its own, never 0.
Owns look-up; the file format is in price_file.py, layers over the book in price_layers.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cost.price import (
    HOURS_PER_MONTH,
    Layer,
    Price,
    PriceBookError,
    Unit,
    UnknownBookError,
    UnknownPrice,
)
from cost.price_file import read_price_file
from stacks.node_spec import Billing

__all__ = [
    "HOURS_PER_MONTH",
    "PRICES_DIR",
    "Layer",
    "Price",
    "PriceBook",
    "PriceBookError",
    "Unit",
    "UnknownPrice",
    "newest",
]

PRICES_DIR: Final = Path(__file__).parent / "prices"
_LAYERS: Final = tuple(Layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices by SKU."""

    name: str
    caveat: str
    prices: Mapping[str, Price]
    """The price in use of every SKU."""
    readings: Mapping[str, tuple[Price, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Every reading of every SKU, used or not."""
    region: str | None = None
    """Region whose prices are in use; None: those that hold everywhere."""

    @staticmethod
    def load(name: str, prices_dir: Path = PRICES_DIR) -> PriceBook:
        """The book of `<name>.yaml`."""
        path = prices_dir / f"{name}.yaml"
        if not path.is_file():
            have = ", ".join(sorted(file.stem for file in prices_dir.glob("*.yaml"))) or "none"
            raise UnknownBookError(f"{name}: no such price book in {prices_dir} (have: {have})")
        file = read_price_file(path)
        return PriceBook.of_readings(file.name, file.caveat, file.readings)

    @staticmethod
    def of_readings(
        name: str,
        caveat: str,
        readings: Mapping[str, tuple[Price, ...]],
        region: str | None = None,
    ) -> PriceBook:
        """A book that uses the newest reading of every SKU."""
        found = {sku: newest(prices, region) for sku, prices in readings.items()}
        return PriceBook(
            name=name,
            caveat=caveat,
            prices=MappingProxyType({sku: price for sku, price in found.items() if price}),
            readings=MappingProxyType(dict(readings)),
            region=region,
        )

    def in_region(self, region: str) -> PriceBook:
        """The same readings, those in use that hold in the region."""
        if region == self.region:
            return self
        return PriceBook.of_readings(self.name, self.caveat, self.readings, region)

    def find(self, sku: str, unit: Unit) -> Price | UnknownPrice:
        """The price of the SKU, which must be sold by `unit`."""
        price = self.prices.get(sku)
        if price is None:
            return UnknownPrice(sku=sku, reason=self._why_unknown(sku))
        if price.unit is not unit:
            raise PriceBookError(
                f"{self.name}.{sku}.unit: sold by {price.unit}, but needed by {unit}; fix the book"
            )
        return price

    def with_prices(self, prices: Iterable[Price]) -> PriceBook:
        """The book with these readings too; a higher layer wins, whatever its date."""
        readings = dict(self.readings)
        for price in prices:
            known = readings.get(price.sku, ())
            readings[price.sku] = known if price in known else (*known, price)
        return PriceBook.of_readings(self.name, self.caveat, readings, self.region)

    def unused(self, sku: str) -> tuple[Price, ...]:
        """Readings of the SKU that are not in use, newest first."""
        used = self.prices.get(sku)
        others = [price for price in self.readings.get(sku, ()) if price != used]
        return tuple(sorted(others, key=_order, reverse=True))

    def _why_unknown(self, sku: str) -> str:
        regions = sorted({str(price.region) for price in self.readings.get(sku, ())})
        if regions:
            where = self.region or "all regions"
            return f"price book '{self.name}' has '{sku}' for {', '.join(regions)}, not for {where}"
        if sku.endswith(f"/{Billing.RESERVED}"):
            return (
                f"price book '{self.name}' has no '{sku}': reserved prices are agreed in a "
                "contract; declare it under contract_prices"
            )
        return f"price book '{self.name}' has no '{sku}'"


def newest(readings: Iterable[Price], region: str | None) -> Price | None:
    """The reading to use in a region; None where none holds there."""
    here = [price for price in readings if price.region in (None, region)]
    return max(here, key=_order, default=None)


def _order(price: Price) -> tuple[int, bool, date, bool]:
    """By layer, then dated before undated, then the newer, then the one that names its region."""
    layer = _LAYERS.index(price.layer)
    return (layer, not price.is_undated, price.date, price.region is not None)
