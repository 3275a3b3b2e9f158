"""Keeps live estimates with their day: `<state>/prices/<cloud|emulator>/<region>.json`.

The emulator's prices are kept apart, so that no estimate of the embedded cloud ever prices a real
one. Owns the file; asking is live.py's.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, Final

from cost.price import CURRENCY, Layer, Price
from cost.price_file import Problems, day, money, text
from cost.price_layers import LivePrices
from cost.sku import covers_vm, unit_of
from infra import whole_file
from infra.nebius.sdk import loopback_target
from infra.prices.errors import LivePriceError

_VERSION: Final = 1


def cache_file(state: Path, region: str) -> Path:
    """Where the estimates of a region are kept, of the API that the environment names."""
    folder = "cloud" if loopback_target() is None else "emulator"
    return state / "prices" / folder / f"{region}.json"


def save(state: Path, live: LivePrices) -> Path:
    """Replaces the kept estimates of these SKUs in one step; the file."""
    path = cache_file(state, live.region)
    try:
        kept = load(state, live.region)
    except LivePriceError:
        kept = None
    fresh = {price.sku for price in live.prices}
    older = () if kept is None else tuple(one for one in kept.prices if one.sku not in fresh)
    document = {
        "schema_version": _VERSION,
        "region": live.region,
        "currency": CURRENCY,
        "prices": {price.sku: _plain(price) for price in (*live.prices, *older)},
    }
    whole_file.write(path, json.dumps(document, indent=2, sort_keys=True) + "\n")
    return path


def load(state: Path, region: str) -> LivePrices | None:
    """The kept estimates; None where nothing was asked for yet, LivePriceError where damaged."""
    path = cache_file(state, region)
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise LivePriceError(f"{path}: cannot be read ({reason}); {_REMEDY}") from error
    problems = Problems()
    entries = document.get("prices") if isinstance(document, dict) else None
    if not isinstance(entries, dict) or document.get("schema_version") != _VERSION:
        raise LivePriceError(f"{path}: not a file of schema version {_VERSION}; {_REMEDY}")
    if document.get("region") != region:
        problems.add(f"{path}.region", f"{document.get('region')!r} is not '{region}'")
    if document.get("currency") != CURRENCY:
        problems.add(f"{path}.currency", f"{document.get('currency')!r}; only {CURRENCY}")
    found = [_price(sku, entry, region, path, problems) for sku, entry in entries.items()]
    if problems.lines:
        raise LivePriceError("\n".join(f"{line}; {_REMEDY}" for line in problems.lines))
    prices = tuple(price for price in found if price is not None)
    if not prices:
        return None
    newest = max(prices, key=lambda price: price.date)
    return LivePrices(region=region, date=newest.date, source=newest.source, prices=prices)


def _plain(price: Price) -> dict[str, str]:
    return {
        "unit": price.unit.value,
        "usd": f"{price.usd:f}",
        "source": price.source,
        "date": price.date.isoformat(),
    }


def _price(sku: str, entry: Any, region: str, path: Path, problems: Problems) -> Price | None:
    key = f"{path}.prices.{sku}"
    unit = unit_of(sku)
    if not isinstance(entry, dict) or unit is None or entry.get("unit") != unit:
        problems.add(key, "not a price of a known SKU by its unit")
        return None
    usd = money(entry.get("usd"), f"{key}.usd", problems)
    source = text(entry.get("source"), f"{key}.source", problems)
    estimated: date | None = day(entry.get("date"), f"{key}.date", problems)
    if usd is None or source is None or estimated is None:
        return None
    return Price(
        sku=sku,
        unit=unit,
        usd=usd,
        source=source,
        date=estimated,
        region=region,
        covers_vm=covers_vm(sku),
        layer=Layer.LIVE,
    )


_REMEDY: Final = "run `soperator prices --refresh`, or delete the file"
