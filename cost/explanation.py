"""The shape of an answer to `soperator cost explain`, and expressions of plain numbers.

Owns shapes and how a number stands in an expression. What is explained is in explain*.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from cost.component import CostComponent, Input
from cost.price import HOURS_PER_MONTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of the bill with an expression that gives it, digit for digit."""

    name: str
    unit: str
    """Such as `USD a month`."""
    expression: str
    """Decimals, + - * / and parentheses; decimals of 28 digits give `value` exactly."""
    value: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that one item of the bill rests on."""

    item: str
    title: str
    formula: str
    """In words."""
    inputs: tuple[Input, ...] = ()
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()


def number(value: Decimal | int) -> str:
    """The number with every digit, without an exponent and without zeros at the end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def added(values: Iterable[Decimal]) -> str:
    """The sum of the numbers that are not 0."""
    return " + ".join(number(value) for value in values if value) or "0"


def rate_expression(line: CostComponent) -> str:
    """US dollars of one piece of the line over its own period: `(2 * 1.35 + 64 * 0.01)`."""
    terms = [
        number(term.price.usd)
        if term.count == 1
        else f"{number(term.count)} * {number(term.price.usd)}"
        for term in line.terms
    ]
    return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"


def line_expression(line: CostComponent, *, high: bool) -> str:
    """US dollars a month of a priced line, from its quantity and the prices of a piece."""
    hours = line.rate is not None and line.rate.is_hourly
    parts = [_quantity(line, high=high), rate_expression(line)]
    return " * ".join([*parts, number(HOURS_PER_MONTH)] if hours else parts)


def _quantity(line: CostComponent, *, high: bool) -> str:
    """The factors of the quantity, or the quantity where its factors are not plain numbers."""
    quantity = line.quantity_high if high else line.quantity_low
    assert quantity is not None
    values = [factor.value.split("..")[-1 if high else 0] for factor in line.quantity_factors]
    product = 1
    for value in values:
        if not value.isdecimal():
            return number(quantity)
        product *= int(value)
    return " * ".join(values) if values and product == quantity else number(quantity)
