"""An explanation of figures: formula, inputs with sources, arithmetic; and its text.

Of a traced number (cost/traced.py) all three are those of its own computation.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from decimal import Decimal

from cost.report.layout import GAP, Format, Report, Table, render_report
from cost.traced import number, trace_of


@dataclass(frozen=True, slots=True)
class Input:
    """One number of a formula and where it comes from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the bill with an expression that gives it, digit for digit."""

    name: str
    unit: str
    """Such as `USD a month`."""
    value: Decimal

    @property
    def expression(self) -> str:
        """Decimals, + - * / and parentheses; decimals of 28 digits give `value` exactly."""
        return trace_of(self.value).expression


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that one item of the bill rests on."""

    item: str
    title: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    words: str = ""
    """The formula, where it is another than that of the first figure."""
    others: tuple[Input, ...] = ()
    """Inputs that no expression shows, or not whole."""

    @property
    def formula(self) -> str:
        """In words."""
        return self.words or trace_of(self.figures[0].value).formula

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Every number with a name, once; two values of it, at min_nodes and at max_nodes."""
        found: dict[tuple[str, str], list[str]] = {}
        for figure in self.figures:
            for each in trace_of(figure.value).inputs:
                values = found.setdefault((each.name, each.source), [])
                if (text := number(each.value)) not in values:
                    values.append(text)
        for each in self.others:
            found.pop((each.name, each.source), None)
        shown = (Input(name, "..".join(each), source) for (name, source), each in found.items())
        return (*self.others, *shown)


def render_explanation(found: Explanation, format: Format = Format.TABLE) -> str:
    """The explanation in the format, ending in a newline."""
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
    report = Report(
        heading=heading,
        tables=tables if found.inputs else (),
        notes=notes,
        data=lambda: plain_explanation(found),
        rows=lambda: _rows(found),
    )
    return render_report(report, format)


def plain_explanation(found: Explanation) -> dict[str, object]:
    """The explanation as JSON values; numbers are text with every digit."""
    return {
        "item": found.item,
        "title": found.title,
        "formula": found.formula,
        "inputs": [asdict(each) for each in found.inputs],
        "figures": [
            {
                "name": each.name,
                "unit": each.unit,
                "expression": each.expression,
                "value": number(each.value),
            }
            for each in found.figures
        ],
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
