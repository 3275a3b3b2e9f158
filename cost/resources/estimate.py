"""Totals of a stack: estimate(spec, book), and what is missing from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal

from cost.prices.book import PriceBook
from cost.prices.price import HOURS_PER_MONTH, Unit, UnknownPrice
from cost.resources.component import CostComponent, Scope
from cost.resources.lines import components, node_rate
from stacks.errors import Problem
from stacks.spec import StackSpec
from stacks.spec.nodes import NodeGroupSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A sum of lines in US dollars a 730-hour month; `low` at min_nodes, `high` at max_nodes."""

    low_usd: Decimal
    high_usd: Decimal
    is_lower_bound: bool
    """Whether a line of the sum has no amount, so that the truth is at least this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a stack costs while it exists; `low` at min_nodes, `high` at max_nodes."""

    stack_name: str
    heading: str | None
    """Printed over the bill where the stack does not pay it."""
    book_name: str
    book_caveat: str
    components: tuple[CostComponent, ...]
    monthly_low_usd: Decimal
    monthly_high_usd: Decimal
    price_date: date | None
    """Day of the oldest price used; None when no price is known."""

    @property
    def hourly_low_usd(self) -> Decimal:
        """US dollars an hour at the least number of nodes."""
        return self.monthly_low_usd / HOURS_PER_MONTH

    @property
    def hourly_high_usd(self) -> Decimal:
        """US dollars an hour at the greatest number of nodes."""
        return self.monthly_high_usd / HOURS_PER_MONTH

    @property
    def unpriced(self) -> tuple[CostComponent, ...]:
        """Lines without an amount."""
        return tuple(component for component in self.components if component.unknown is not None)

    @property
    def is_lower_bound(self) -> bool:
        """Whether the totals miss a line, so that the truth is at least this much."""
        return any(component.unknown is not None for component in self.components)

    def subtotal(self, scope: Scope) -> Total:
        """The sum of the lines of one scope."""
        return total_of([line for line in self.components if line.scope is scope])


def estimate(spec: StackSpec, book: PriceBook) -> Estimate:
    """The stack's bill with totals."""
    lines = components(spec, book)
    total = total_of(lines)
    return Estimate(
        stack_name=spec.name,
        heading=spec.bill_heading,
        book_name=book.name,
        book_caveat=book.caveat,
        components=lines,
        monthly_low_usd=total.low_usd,
        monthly_high_usd=total.high_usd,
        price_date=min((term.price.date for line in lines for term in line.terms), default=None),
    )


def total_of(lines: Sequence[CostComponent]) -> Total:
    """The sum of the lines; those without an amount count as nothing and make it a lower bound."""
    low = high = Decimal(0)
    is_lower_bound = False
    for line in lines:
        if line.unknown is not None:
            is_lower_bound = True
        low += line.monthly_low_usd or 0
        high += line.monthly_high_usd or 0
    return Total(low_usd=low, high_usd=high, is_lower_bound=is_lower_bound)


def price_problems(
    problems: tuple[Problem, ...], spec: StackSpec, book: PriceBook
) -> tuple[Problem, ...]:
    """The same problems, those about spare nodes and GiB with their US dollars per month."""
    return tuple(_priced_problem(problem, spec, book) for problem in problems)


def _priced_problem(problem: Problem, spec: StackSpec, book: PriceBook) -> Problem:
    if problem.spare_gib is not None:
        price = book.find(problem.spare_gib.sku, Unit.GIB_MONTH)
        if isinstance(price, UnknownPrice):
            return problem
        return replace(problem, usd_per_month=problem.spare_gib.count * price.usd)
    spare = problem.spare_nodes
    groups: dict[str, NodeGroupSpec | None] = {
        "controller": spec.nodes.controller,
        "accounting": spec.nodes.accounting,
        "nfs": spec.nodes.nfs,
    }
    group = None if spare is None else groups.get(spare.role)
    if spare is None or group is None:
        return problem
    one_node = node_month_usd(group, book)
    return problem if one_node is None else replace(problem, usd_per_month=spare.count * one_node)


def node_month_usd(group: NodeGroupSpec, book: PriceBook) -> Decimal | None:
    """US dollars a month for one node with its boot disk; None when a price is unknown."""
    rate = node_rate(group, book)
    disk = book.find(f"disk/{group.boot_disk.type}", Unit.GIB_MONTH)
    if isinstance(rate, UnknownPrice) or isinstance(disk, UnknownPrice):
        return None
    return rate.usd_per_month + group.boot_disk.size_gib * disk.usd
