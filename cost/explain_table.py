"""Prints an explanation: render_explanation(explanation, format).

Owns its words and its plain values. Computes nothing but roundings.
"""

from __future__ import annotations

import json

from cost.csv_text import csv_text
from cost.explanation import Explanation, Figure, number
from cost.layout import GAP, Document, Format, Table, lay_out


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
            num_text_columns=1,
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
        "inputs": [
            {"name": each.name, "value": each.value, "source": each.source} for each in found.inputs
        ],
        "figures": [
            {
                "name": figure.name,
                "unit": figure.unit,
                "expression": figure.expression,
                "value": number(figure.value),
            }
            for figure in found.figures
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
