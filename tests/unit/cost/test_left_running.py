"""What a stack costs that is left running: the bill's own hour, times a day, a week and a month."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from cost.bill.bill import left_running_lines, pause_saving
from cost.prices.book import PriceBook
from cost.report.layout import usd_text
from cost.resources.estimate import estimate
from stacks.load import load_stack
from stacks.spec import LifetimeSpec, StackSpec
from tests import SHIPPED

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
pytestmark = pytest.mark.usefixtures("public_key_file")


def lines_of(spec: StackSpec) -> tuple[str, ...]:
    book = PriceBook.load(spec.prices)
    return left_running_lines(spec, book, estimate(spec, book), NOW)


def test_h100_prod_costs_what_two_nodes_and_the_rest_cost() -> None:
    """$72 for two nodes of 8 H100 and $2.60 around them: 74.60 x 24, x 168, x 730."""
    first, paused, how = lines_of(load_stack("h100-prod"))
    assert first.startswith("If you forget it: $1,790.")
    assert "a week" in first
    assert "a month of 730 hours, at min_nodes" in first
    assert paused.startswith("  paused: $")
    assert "nothing ends it: declare lifetime.idle_hours or lifetime.until" in how


@pytest.mark.parametrize("name", SHIPPED)
def test_a_month_of_forgetting_is_the_bill_of_a_month(name: str) -> None:
    spec = load_stack(name)
    book = PriceBook.load(spec.prices)
    total = estimate(spec, book).total
    assert f"{usd_text(total.low_usd)} a month of 730 hours" in lines_of(spec)[0]
    saved = pause_saving(spec, book).low_usd / 730
    assert Decimal(0) <= saved < total.hourly_low_usd


def test_a_paused_stack_has_one_price() -> None:
    spec = load_stack("h100-prod")
    paused = lines_of(replace(spec, nodes=replace(spec.nodes, paused=True)))
    assert not [line for line in paused if line.startswith("  paused")]


def test_what_ends_it_is_priced() -> None:
    """An hour of the stack is $74.60: 8 idle hours, and 48 until its end."""
    lifetime = LifetimeSpec(idle_hours=8, until="2026-11-23T18:00Z")
    _, _, idle, end = lines_of(replace(load_stack("h100-prod"), lifetime=lifetime))
    assert "after 8 h without a job: $596." in idle
    assert idle.endswith(" at min_nodes for those")
    assert "lifetime.until 2026-11-23 18:00 UTC: $3,580." in end


def test_a_line_without_a_price_makes_every_amount_a_least() -> None:
    """Also one of storage, which no worker has."""
    lifetime = LifetimeSpec(idle_hours=8, until="2026-11-23T18:00Z")
    spec = replace(load_stack("h100-prod"), lifetime=lifetime)
    book = PriceBook.load(spec.prices)
    bill = estimate(spec, book)
    storage = next(line for line in bill.components if line.nodeset is None)
    unpriced = replace(storage, unknown="no source has it", rate=None)
    found = replace(bill, components=(*bill.components, unpriced))
    first, paused, idle, end = left_running_lines(spec, book, found, NOW)
    assert first.startswith("If you forget it: at least $")
    assert paused.startswith("  paused: at least $")
    assert "without a job: at least $596." in idle
    assert "UTC: at least $3,580." in end
