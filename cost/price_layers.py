"""The prices of one stack: layered(spec, live) -> PriceBook.

The shipped book, over it the provider's own estimate (where the stack asks for it), over both the
prices of the user's contract. Every Price says which layer it is from. Owns their order and what a
contract price must satisfy; asking the provider is infra/prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from cost.price import Layer, Price, PriceBookError, UnknownBookError
from cost.price_book import PriceBook
from cost.price_file import Problems, day, money, text, unit
from cost.sku import covers_vm
from stacks.cost_spec import ContractPriceSpec
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePrices:
    """What the provider's calculator estimated for one region on one day."""

    region: str
    date: date
    source: str
    """Who estimated, such as `CalculatorService of Nebius`."""
    prices: tuple[Price, ...]


def layered(
    spec: StackSpec, live: LivePrices | None = None, book: PriceBook | None = None
) -> PriceBook:
    """The prices that the stack pays; PriceBookError names every contract price that is wrong."""
    try:
        shipped = PriceBook.load(spec.prices) if book is None else book
    except UnknownBookError as error:
        raise PriceBookError(f"{spec.name}.prices: {error}") from error
    prices = shipped.in_region(spec.nebius.region)
    if spec.live_prices and live is not None and live.region == spec.nebius.region:
        prices = prices.with_prices(live.prices)
    return prices.with_prices(contract_prices(spec))


def contract_prices(spec: StackSpec) -> tuple[Price, ...]:
    """The contract prices that the stack declares."""
    problems, seen, found = Problems(), set[str](), list[Price]()
    for number, declared in enumerate(spec.contract_prices):
        path = f"{spec.name}.contract_prices[{number}]"
        if declared.sku in seen:
            problems.add(f"{path}.sku", f"'{declared.sku}' stands here twice; keep one")
        seen.add(declared.sku)
        found += _contract_price(declared, path, problems)
    problems.refuse()
    return tuple(found)


def _contract_price(declared: ContractPriceSpec, path: str, problems: Problems) -> Iterator[Price]:
    sold_by = unit(declared.sku, declared.unit, path, problems, sku_path=f"{path}.sku")
    usd = money(declared.usd, f"{path}.usd", problems)
    source = text(declared.source, f"{path}.source", problems)
    agreed = day(declared.date, f"{path}.date", problems)
    if sold_by is not None and usd is not None and source is not None and agreed is not None:
        yield Price(
            sku=declared.sku,
            unit=sold_by,
            usd=usd,
            source=source,
            date=agreed,
            covers_vm=covers_vm(declared.sku),
            layer=Layer.CONTRACT,
        )
