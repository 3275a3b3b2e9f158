"""The prices of a stack with source, day and age, and the readings that are not used."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Annotated, Any

import typer

from cost.prices.book import Price, PriceBook, price_age_problems
from cost.resources.estimate import estimate
from infra.cli import context
from infra.cli.context import StackOption, opt
from infra.cli.output import Format, note, print_json, print_table
from infra.operate import prices as live
from infra.operate.prices import LivePriceError, price_book
from infra.providers.nebius.sdk import EndpointError
from infra.state import DEFAULT_STACK
from stacks.spec import StackSpec

_HEADERS = ("SKU", "USD", "Per", "Region", "Layer", "Date", "Age", "Source")


def prices(
    stack: StackOption = DEFAULT_STACK,
    refresh: Annotated[bool, opt("Ask the provider's calculator first.")] = False,
    whole_book: Annotated[
        bool, opt("List every SKU, not only those that the stack uses.", "--all")
    ] = False,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Show the prices of a stack with source, date and age, and the readings that are not used."""
    spec = context.spec(stack)
    today = _today()
    is_current = not refresh or _refresh(spec, today)
    book = price_book(spec, context.state_root())
    # Those of the bill stand in the order of its lines.
    used = (price for line in estimate(spec, book).components for price in line.prices)
    prices = list(book.prices.values() if whole_book else dict.fromkeys(used))
    unused = [other for price in prices for other in book.unused(price.sku)]
    if format is Format.JSON:
        print_json(
            {
                "stack": spec.name,
                "book": book.name,
                "currency": "USD",
                "prices": [_plain(price, today) for price in prices],
                "not_used": [_plain(price, today) for price in unused],
            }
        )
    else:
        _print(spec, book, prices, unused)
        note(*price_age_problems(spec, prices, today))
    if not is_current:
        raise typer.Exit(1)


def _print(spec: StackSpec, book: PriceBook, prices: list[Price], unused: list[Price]) -> None:
    today = _today()
    print(f"Prices of {spec.name}: book {book.name}, {spec.nebius.region}, USD without tax")
    print_table(_HEADERS, _rows(prices, today))
    if unused:
        print("\nReadings that are not used:")
        print_table(_HEADERS, _rows(unused, today))


def _refresh(spec: StackSpec, today: date) -> bool:
    """Keeps today's estimates; where there are none, says so in a line and is False."""
    try:
        prices, not_recognised = live.estimate(spec, today)
    except (LivePriceError, EndpointError) as error:
        for line in str(error).splitlines():
            note(f"soperator: {line}; the prices stay as they were")
        return False
    path = live.save(context.state_root(), spec.nebius.region, prices)
    note(f"{len(prices)} prices of {prices[0].source}: {path}")
    for line in not_recognised:
        note(f"not refreshed: {line}")
    if not spec.live_prices:
        note(f"{spec.name} does not use them: set live_prices: true in its stack file")
    return True


def _today() -> date:
    return datetime.now(UTC).date()


def _rows(prices: Iterable[Price], today: date) -> list[tuple[object, ...]]:
    return [
        (
            price.sku,
            f"{price.usd:f}",
            price.unit,
            price.region or "all",
            price.layer,
            price.dated,
            f"{(today - price.date).days} d",
            price.source,
        )
        for price in prices
    ]


def _plain(price: Price, today: date) -> dict[str, Any]:
    return {
        "sku": price.sku,
        "usd": f"{price.usd:f}",
        "unit": price.unit.value,
        "region": price.region,
        "layer": price.layer.value,
        "date": price.date.isoformat(),
        "is_undated": price.is_undated,
        "age_days": (today - price.date).days,
        "source": price.source,
    }
