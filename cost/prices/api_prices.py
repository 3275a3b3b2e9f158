"""Prices of hosted models per million tokens: ApiPriceBook.load().find("openai/gpt-4o-mini").

From cost/prices/api/*.yaml; of several readings the newest is used, as in every price book.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cost.prices.file import DatedRow, Money, NoHead, read_entries, read_head, refuse
from cost.prices.price import UnknownPrice
from stacks.spec.decode import Decoder

API_PRICES_DIR: Final = Path(__file__).parent / "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPrice:
    """US dollars for a million tokens of one hosted model, without tax."""

    model: str
    """Provider and model, such as `openai/gpt-4o-mini`."""
    usd_per_1m_input: Decimal
    usd_per_1m_cached_input: Decimal | None
    """None where the provider has no price of its own for prompt tokens that it has cached."""
    usd_per_1m_output: Decimal
    source: str
    date: date
    """Day from which the source says it holds, or else the day on which it was read."""
    is_undated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiPriceBook:
    """The price in use of every hosted model."""

    prices: Mapping[str, ApiPrice]
    readings: Mapping[str, tuple[ApiPrice, ...]]
    """Every reading of every model, used or not."""

    @staticmethod
    def load(folder: Path = API_PRICES_DIR) -> ApiPriceBook:
        """Every model of the folder's files; a model stands in one file."""
        decoder = Decoder()
        readings: dict[str, tuple[ApiPrice, ...]] = {}
        for path in sorted(folder.glob("*.yaml")):
            for model, found in _models(path, decoder).items():
                if model in readings:
                    decoder.refuse(f"{path}.models.{model}", "stands in another file already")
                readings[model] = found
        refuse(decoder)
        used = {  # dated before undated, then the newer
            model: max(found, key=lambda price: (not price.is_undated, price.date))
            for model, found in readings.items()
        }
        return ApiPriceBook(prices=MappingProxyType(used), readings=MappingProxyType(readings))

    def find(self, model: str) -> ApiPrice | UnknownPrice:
        """The price of the model, whatever the case of its name."""
        name = model.lower()
        if name in self.prices:
            return self.prices[name]
        near = difflib.get_close_matches(name, self.prices, n=1)
        advice = (
            f"the nearest name is '{near[0]}'"
            if near
            else f"have: {', '.join(sorted(self.prices))}"
        )
        return UnknownPrice(sku=model, reason=f"no API price of '{model}' is known; {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _ApiRow(DatedRow):
    input: Money
    cached_input: Money | None = None
    output: Money


def _models(path: Path, decoder: Decoder) -> dict[str, tuple[ApiPrice, ...]]:
    _, models = read_head(path, "models", decoder)
    found: dict[str, tuple[ApiPrice, ...]] = {}
    for name, at, _, rows in read_entries(decoder, models, f"{path}.models", NoHead, _ApiRow):
        model = name.lower()
        if "/" not in model:
            decoder.refuse(at, "expected provider/model, such as openai/gpt-4o-mini")
        prices = tuple(_price(model, row) for row in rows)
        if len({(price.date, price.is_undated) for price in prices}) < len(prices):
            decoder.refuse(at, "two readings of one day; keep one")
        if prices:
            found[model] = prices
    return found


def _price(model: str, row: _ApiRow) -> ApiPrice:
    return ApiPrice(
        model=model,
        usd_per_1m_input=row.input,
        usd_per_1m_cached_input=row.cached_input,
        usd_per_1m_output=row.output,
        source=row.source,
        date=row.day,
        is_undated=row.date is None,
    )
