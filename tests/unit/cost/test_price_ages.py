"""Prices that are older than the stack allows are told once, with their days."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal

from cost.prices.book import Price, Unit, price_age_problems
from stacks.errors import Level
from tests.unit.cost.conftest import Priced

TODAY = date(2026, 11, 21)


def price(sku: str, days_old: int, *, is_undated: bool = False) -> Price:
    return Price(
        sku=sku,
        unit=Unit.GPU_HOUR,
        usd=Decimal(1),
        source="s",
        date=TODAY - timedelta(days=days_old),
        is_undated=is_undated,
    )


def test_a_price_is_old_on_the_day_after_the_last_one_allowed(priced: Callable[[str], Priced]):
    prices = [price("a", 90), price("b", 91), price("c", 400), price("c", 400)]
    (problem,) = price_age_problems(priced("h100-prod")[0], prices, TODAY)
    assert problem.message.startswith("2 prices in use are older than 90 days: c (2025-10-17), b (")


def test_old_prices_are_one_warning_that_names_them_and_the_fix(
    priced: Callable[[str], Priced],
):
    spec = priced("h100-prod")[0]
    prices = [price("a", 91), price("b", 100, is_undated=True), price("c", 1)]
    (problem,) = price_age_problems(spec, prices, TODAY)
    assert problem.level is Level.WARNING
    assert problem.path == "h100-prod.policy.max_price_age_days"
    assert problem.message.startswith(
        "2 prices in use are older than 90 days: "
        "b (undated, read on 2026-08-13), a (2026-08-22); confirm them"
    )


def test_fresh_prices_are_no_problem(priced: Callable[[str], Priced]):
    assert price_age_problems(priced("h100-prod")[0], [price("a", 90)], TODAY) == ()
