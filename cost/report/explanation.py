"""An explanation of one figure: formula, inputs with sources, arithmetic; and its text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from decimal import Decimal

from cost.prices.price import HOURS_PER_MONTH
from cost.report.layout import GAP, Document, Format, Table, csv_text, lay_out
from cost.resources.component import CostComponent, Input


@dataclass(frozen=True, slots=True)
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


def render_explanation(found: Explanation, format: Format = Format.TABLE) -> str:
    """The explanation in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(plain_explanation(found), indent=2) + "\n"
    if format is Format.CSV:
        return csv_text(_rows(found))
    tables = (
        Table(
            title=f"{found.title} ({found.item})",
            headings=("Input", "Value"),
            rows=tuple(
                row
                for each in found.inputs
                for row in ((each.name, each.value), (f"{GAP}{GAP}{each.source}",))
            ),
        ),
    )
    heading = None if found.inputs else f"{found.title} ({found.item})"
    notes = (
        f"Formula: {found.formula}.",
        *(_figure_text(figure) for figure in found.figures),
        *found.notes,
    )
    document = Document(heading=heading, tables=tables if found.inputs else (), notes=notes)
    return lay_out(document, format)


def plain_explanation(found: Explanation) -> dict[str, object]:
    """The explanation as JSON values; numbers are text with every digit."""
    return {
        "item": found.item,
        "title": found.title,
        "formula": found.formula,
        "inputs": [asdict(each) for each in found.inputs],
        "figures": [{**asdict(each), "value": number(each.value)} for each in found.figures],
        "notes": list(found.notes),
    }


def _figure_text(figure: Figure) -> str:
    name = f"{figure.name}: " if figure.name else ""
    return f"{name}{figure.expression} = {number(figure.value)} {figure.unit}"


def _rows(found: Explanation) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("kind", "name", "value", "source")]
    rows += [("input", each.name, each.value, each.source) for each in found.inputs]
    rows += [
        (figure.unit, figure.name, number(figure.value), figure.expression)
        for figure in found.figures
    ]
    return rows
