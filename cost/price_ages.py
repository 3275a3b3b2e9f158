"""Prices that are older than a stack allows: price_age_problems(spec, prices, today).

An age depends on the day, so it is told as a warning only: a bill and its outputs carry dates.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from cost.price import Price
from stacks.problem import Level, Problem
from stacks.spec import StackSpec


def old_prices(prices: Iterable[Price], today: date, max_age_days: int) -> tuple[Price, ...]:
    """The prices that are more than `max_age_days` old, oldest first, each SKU once."""
    old = {price.sku: price for price in prices if age_days(price, today) > max_age_days}
    return tuple(sorted(old.values(), key=lambda price: (price.date, price.sku)))


def age_days(price: Price, today: date) -> int:
    """Whole days since the price was dated, or read where it is undated."""
    return (today - price.date).days


def price_age_problems(
    spec: StackSpec, prices: Iterable[Price], today: date
) -> tuple[Problem, ...]:
    """One warning for all prices in use that are older than the stack's policy allows."""
    limit = spec.policy.max_price_age_days
    old = old_prices(prices, today, limit)
    if not old:
        return ()
    names = ", ".join(f"{price.sku} ({price.dated})" for price in old)
    return (
        Problem(
            level=Level.WARNING,
            path=f"{spec.name}.policy.max_price_age_days",
            message=(
                f"{len(old)} prices in use are older than {limit} days: {names}; "
                "confirm them, refresh with `soperator prices --refresh` and live_prices: true, "
                "or declare yours under contract_prices"
            ),
        ),
    )
