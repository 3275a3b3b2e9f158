"""Lays tables and notes out as text of at most 100 columns, markdown or an HTML fragment, in ASCII.

Owns layout and how money looks. Knows nothing about what is in the tables.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Final

WIDTH: Final = 100
UNKNOWN: Final = "unknown"
GAP: Final = "  "


class Format(StrEnum):
    """What `soperator cost --format` accepts."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headings and rows of text; `num_text_columns` columns are left-aligned, the rest right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int
    bad_rows: frozenset[int] = frozenset()
    """Rows that break a promise, by index; HTML gives them the class `bad`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Tables and the notes under them."""

    heading: str | None
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    figures: tuple[str, ...] = ()
    """Charts as inline SVG (charts.py); only HTML shows them."""


def lay_out(document: Document, format: Format) -> str:
    """The document as text, markdown or HTML, ending in a newline."""
    renderers = {Format.TABLE: _text, Format.MARKDOWN: _markdown, Format.HTML: _html}
    return renderers[format](document)


def _text(document: Document) -> str:
    lines: list[str] = []
    if document.heading is not None:
        lines += [*textwrap.wrap(document.heading, WIDTH), ""]
    for table in document.tables:
        lines += [*textwrap.wrap(table.title, WIDTH), *_text_table(table), ""]
    for note in document.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text_table(table: Table) -> list[str]:
    rows = (table.headings, *table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    # Only names are of any length: the first column gives way so that every line fits.
    room = WIDTH - sum(widths[1:]) - len(GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], room)
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    lines = [_text_row(row, widths, table.num_text_columns) for row in rows]
    return [rule, lines[0], rule, *lines[1:], rule]


def _text_row(row: tuple[str, ...], widths: Sequence[int], num_text_columns: int) -> str:
    cells = [
        cell if len(cell) <= width else f"{cell[: width - 3]}..."
        for cell, width in zip(row, widths, strict=True)
    ]
    return GAP.join(
        f"{cell:<{width}}" if column < num_text_columns else f"{cell:>{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _markdown(document: Document) -> str:
    lines: list[str] = []
    if document.heading is not None:
        lines += [f"> {document.heading}", ""]
    for table in document.tables:
        marks = [
            ":--" if column < table.num_text_columns else "--:"
            for column in range(len(table.headings))
        ]
        cells = [[cell.strip().replace("|", "\\|") for cell in row] for row in table.rows]
        lines += [
            f"**{table.title}**",
            "",
            *(f"| {' | '.join(row)} |" for row in (table.headings, marks, *cells)),
            "",
        ]
    lines += [f"- {note}" for note in document.notes]
    return "\n".join(lines) + "\n"


def _html(document: Document) -> str:
    parts = ['<section class="cost">']
    if document.heading is not None:
        parts.append(f'<p class="heading">{html.escape(document.heading)}</p>')
    for table in document.tables:
        parts += [f"<table><caption>{html.escape(table.title)}</caption>", "<thead><tr>"]
        parts += [f"<th>{html.escape(heading)}</th>" for heading in table.headings]
        parts.append("</tr></thead><tbody>")
        for index, row in enumerate(table.rows):
            cells = "".join(
                f"<td{'' if column < table.num_text_columns else ' class=number'}>"
                f"{html.escape(cell.strip())}</td>"
                for column, cell in enumerate(row)
            )
            kind = "" if any(row[1:]) else " class=section"
            parts.append(f"<tr{' class=bad' if index in table.bad_rows else kind}>{cells}</tr>")
        parts.append("</tbody></table>")
    parts += [f"<figure>{figure}</figure>" for figure in document.figures]
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in document.notes)
    parts += [f'<ul class="notes">{notes}</ul>', "</section>"]
    return "\n".join(parts) + "\n"


def span(low: str, high: str, to: str) -> str:
    """One text when both ends look the same, else both."""
    return low if low == high else f"{low}{to}{high}"


def usd_text(usd: Decimal) -> str:
    """Dollars and cents."""
    return f"${usd.quantize(Decimal('0.01'), ROUND_HALF_UP):,f}"


def small_usd_text(usd: Decimal) -> str:
    """Cents from a dollar up, three significant digits below, so that small costs stay visible."""
    if usd >= 1 or usd == 0:
        return usd_text(usd)
    step = Decimal(1).scaleb(usd.adjusted() - 2)
    return f"${usd.quantize(step, ROUND_HALF_UP):f}"
