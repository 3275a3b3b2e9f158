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

from cost.prices.file import (
    Problems,
    check_currency,
    day_of,
    money,
    read_document,
    reading_rows,
    text,
    unknown_keys,
)
from cost.prices.price import CURRENCY, UnknownPrice
from stacks.files import is_map

API_PRICES_DIR: Final = Path(__file__).parent / "api"
_BOOK_KEYS: Final = ("name", "currency", "models")
_READING_KEYS: Final = ("input", "cached_input", "output", "source", "date", "read", "currency")


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
        problems = Problems()
        readings: dict[str, tuple[ApiPrice, ...]] = {}
        for path in sorted(folder.glob("*.yaml")):
            for model, found in _models(path, problems).items():
                if model in readings:
                    problems.add(f"{path}.models.{model}", "stands in another file already")
                readings[model] = found
        problems.refuse()
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


def _models(path: Path, problems: Problems) -> dict[str, tuple[ApiPrice, ...]]:
    document = read_document(path)
    unknown_keys(document, _BOOK_KEYS, str(path), problems)
    if document.get("name") != path.stem:
        problems.add(f"{path}.name", f"{document.get('name')!r} is not the file's name")
    check_currency(document.get("currency"), f"{path}.currency", problems)
    models = document.get("models")
    if not is_map(models) or not models:
        problems.add(f"{path}.models", "expected a mapping of models")
        return {}
    found: dict[str, tuple[ApiPrice, ...]] = {}
    for model, entry in models.items():
        prices = _readings(model.lower(), entry, f"{path}.models.{model}", problems)
        if prices:
            found[model.lower()] = prices
    return found


def _readings(model: str, entry: object, path: str, problems: Problems) -> tuple[ApiPrice, ...]:
    if not is_map(entry):
        problems.add(path, f"expected a mapping of {', '.join(_READING_KEYS)}")
        return ()
    unknown_keys(entry, ("readings", *_READING_KEYS), path, problems)
    if "/" not in model:
        problems.add(path, "expected provider/model, such as openai/gpt-4o-mini")
    rows = reading_rows(entry, _READING_KEYS, path, problems)
    found = [_reading(model, row, row_path, problems) for row_path, row in rows]
    prices = tuple(price for price in found if price is not None)
    if len({(price.date, price.is_undated) for price in prices}) < len(prices):
        problems.add(path, "two readings of one day; keep one")
    return prices


def _reading(
    model: str, row: Mapping[str, object], path: str, problems: Problems
) -> ApiPrice | None:
    before = len(problems.lines)
    usd_in = money(row.get("input"), f"{path}.input", problems)
    usd_out = money(row.get("output"), f"{path}.output", problems)
    usd_cached = None
    if "cached_input" in row:
        usd_cached = money(row["cached_input"], f"{path}.cached_input", problems)
    source = text(row.get("source"), f"{path}.source", problems)
    day, is_undated = day_of(row, path, problems)
    check_currency(row.get("currency", CURRENCY), f"{path}.currency", problems)
    if len(problems.lines) > before:
        return None
    if usd_in is None or usd_out is None or source is None or day is None:
        raise AssertionError(f"{path}: a value is missing and no problem was told")
    return ApiPrice(
        model=model,
        usd_per_1m_input=usd_in,
        usd_per_1m_cached_input=usd_cached,
        usd_per_1m_output=usd_out,
        source=source,
        date=day,
        is_undated=is_undated,
    )
