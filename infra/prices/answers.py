"""Unit prices out of the calculator's answer: unit_prices(wanted, breakdown).

The calculator tells costs by SKU ids of its own, which are not published, so a cost is recognised
by its quantity: 64 vCPUs and 384 GiB are two different numbers. Nodes of NVLink GPUs have one price
for each GPU, however the answer splits it. What cannot be recognised is left to the book, and told.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final

from cost.price import HOURS_PER_MONTH, Unit
from cost.sku import UNITS, covers_vm
from infra.prices.requests import Wanted

_DIGITS: Final = Decimal("1e-8")
"""A unit price is told to a hundred-millionth of a dollar; lists have at most nine digits."""


class NotRecognisedError(Exception):
    """The answer does not fit what was asked."""


def unit_prices(wanted: Wanted, breakdown: Any) -> Mapping[str, Decimal]:
    """SKU -> US dollars for one of its units, from the costs of one hour."""
    total = _decimal(breakdown.cost)
    if total == 0:
        raise NotRecognisedError("the answer is 0, which is taken for no price")
    (first, count), *others = wanted.counts.items()
    if not others or covers_vm(first):
        return {first: _unit_price(first, total / count)}
    costs = [(_decimal(sku.quantity), _decimal(sku.cost)) for sku in breakdown.sku_costs]
    return {
        sku: _unit_price(sku, _cost_of(sku, count, costs) / count)
        for sku, count in wanted.counts.items()
    }


def _cost_of(sku: str, count: int, costs: list[tuple[Decimal, Decimal]]) -> Decimal:
    """The one cost whose quantity is the number of units."""
    found = [usd for quantity, usd in costs if quantity == count]
    if len(found) != 1:
        told = ", ".join(f"{quantity:f}" for quantity, _ in costs)
        raise NotRecognisedError(f"no single item of quantity {count} for {sku} (items: {told})")
    return found[0]


def _unit_price(sku: str, usd_per_hour: Decimal) -> Decimal:
    """The price by the SKU's unit; months have 730 hours."""
    usd = usd_per_hour * HOURS_PER_MONTH if UNITS[sku] is Unit.GIB_MONTH else usd_per_hour
    text = f"{usd.quantize(_DIGITS, ROUND_HALF_UP):f}"
    return Decimal(text.rstrip("0").rstrip("."))


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise NotRecognisedError(f"{text!r} is not a number") from error
    if not value.is_finite() or value < 0:
        raise NotRecognisedError(f"{text!r} is not an amount")
    return value
