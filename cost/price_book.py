"""Dated prices from cost/prices/*.yaml; a price that is not known is a state of its own, never 0.

Owns the file format and look-up. Does not own quantities (components.py).
    price = PriceBook.load("seed000").find("disk/network-ssd", Unit.GIB_MONTH)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeGuard

import yaml

HOURS_PER_MONTH: Final = Decimal(730)
"""Nebius's own month (docs.nebius.com/object-storage/resources/pricing: 730 hours)."""
PRICES_DIR: Final = Path(__file__).parent / "prices"
_BOOK_KEYS: Final = ("name", "currency", "caveat", "prices")
_PRICE_KEYS: Final = ("unit", "usd", "source", "date", "covers_vm")


class Unit(StrEnum):
    """What one price is for."""

    GPU_HOUR = "GPU-hour"
    VCPU_HOUR = "vCPU-hour"
    GIB_HOUR = "GiB-hour"
    GIB_MONTH = "GiB-month"
    ADDRESS_HOUR = "address-hour"
    CLUSTER_HOUR = "cluster-hour"


class PriceBookError(ValueError):
    """A price book that is missing or cannot be read, with every problem found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for one unit of one SKU, without tax, as a source gave it on a day."""

    sku: str
    unit: Unit
    usd: Decimal
    source: str
    date: date
    covers_vm: bool = False
    """True where a GPU's price includes the vCPUs and memory of its VM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPrice:
    """A SKU that the book has no price for."""

    sku: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBook:
    """Prices by SKU."""

    name: str
    caveat: str
    prices: Mapping[str, Price]

    @staticmethod
    def load(name: str, prices_dir: Path = PRICES_DIR) -> PriceBook:
        """The book of `<name>.yaml`."""
        path = prices_dir / f"{name}.yaml"
        if not path.is_file():
            have = ", ".join(sorted(file.stem for file in prices_dir.glob("*.yaml"))) or "none"
            raise PriceBookError(f"{name}: no such price book in {prices_dir} (have: {have})")
        try:
            # BaseLoader keeps every scalar as text, so no price passes through a binary float.
            document: object = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506
        except yaml.YAMLError as error:
            raise PriceBookError(f"{path}: not valid YAML: {error}") from error
        return _book(document, path)

    def find(self, sku: str, unit: Unit) -> Price | UnknownPrice:
        """The price of the SKU, which must be sold by `unit`."""
        price = self.prices.get(sku)
        if price is None:
            return UnknownPrice(sku=sku, reason=f"price book '{self.name}' has no '{sku}'")
        if price.unit is not unit:
            raise PriceBookError(
                f"{self.name}.{sku}.unit: sold by {price.unit}, but needed by {unit}; fix the book"
            )
        return price


def _book(document: object, path: Path) -> PriceBook:
    problems: list[str] = []
    entries = document.get("prices") if _is_map(document) else None
    if not _is_map(document) or not _is_map(entries):
        raise PriceBookError(f"{path}: expected a mapping of {', '.join(_BOOK_KEYS)}")
    problems += [f"{path}.{key}: unknown key" for key in document if key not in _BOOK_KEYS]
    if document.get("name") != path.stem:
        problems.append(f"{path}.name: {document.get('name')!r} is not the file's name")
    if document.get("currency") != "USD":
        problems.append(f"{path}.currency: {document.get('currency')!r}; only USD is supported")
    prices: dict[str, Price] = {}
    for sku, entry in entries.items():
        price = _price(sku, entry, f"{path}.prices.{sku}", problems)
        if price is not None:
            prices[sku] = price
    if problems:
        raise PriceBookError("\n".join(problems))
    return PriceBook(
        name=path.stem, caveat=str(document.get("caveat", "")), prices=MappingProxyType(prices)
    )


def _price(sku: str, entry: object, path: str, problems: list[str]) -> Price | None:
    if not _is_map(entry):
        problems.append(f"{path}: expected a mapping of {', '.join(_PRICE_KEYS)}")
        return None
    found = len(problems)
    problems += [f"{path}.{key}: unknown key" for key in entry if key not in _PRICE_KEYS]
    texts = {key: value for key, value in entry.items() if isinstance(value, str) and value}
    problems += [
        f"{path}.{key}: missing" for key in ("unit", "usd", "source", "date") if key not in texts
    ]
    if len(problems) > found:
        return None
    try:
        unit = Unit(texts["unit"])
    except ValueError:
        problems.append(f"{path}.unit: {texts['unit']!r} is not one of {', '.join(Unit)}")
        return None
    try:
        usd = Decimal(texts["usd"])
        day = date.fromisoformat(texts["date"])
    except (InvalidOperation, ValueError):
        problems.append(f"{path}: usd must be a decimal and date YYYY-MM-DD, both in quotes")
        return None
    if not usd.is_finite() or usd < 0:
        problems.append(f"{path}.usd: {usd} is not an amount of money; use 0 or more")
        return None
    return Price(
        sku=sku,
        unit=unit,
        usd=usd,
        source=texts["source"],
        date=day,
        covers_vm=texts.get("covers_vm") == "true",
    )


def _is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
