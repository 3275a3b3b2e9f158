"""Lays tables and notes out as text of at most 108 columns, markdown or an HTML fragment, in ASCII.

Owns layout and how money looks. Knows nothing about what is in the tables.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.rounding import rounded
from cost.visible import visible

WIDTH: Final = 108
UNKNOWN: Final = "unknown"
GAP: Final = "  "
_MIN_NAME: Final = 8


class Format(StrEnum):
    """What `soperator cost --format` accepts."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headings and rows of text; `num_text_columns` columns are left-aligned, the rest right.

    A row of one cell spans all columns: why the row above it is as it is.
    """

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
    return "\n".join(visible(line.rstrip()) for line in lines) + "\n"


def _text_table(table: Table) -> list[str]:
    rows = [row for row in (table.headings, *table.rows) if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Only names are of any length: the first column gives way so that every line fits.
    room = WIDTH - sum(widths[1:]) - len(GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], max(room, _MIN_NAME))
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    lines = [rule, *_text_row(table.headings, widths, table.num_text_columns), rule]
    for row in table.rows:
        lines += (
            _text_span(*row) if len(row) == 1 else _text_row(row, widths, table.num_text_columns)
        )
    return [*lines, rule]


def _text_row(row: tuple[str, ...], widths: Sequence[int], num_text_columns: int) -> list[str]:
    """One line, and more where the first cell is too long for its column."""
    first, more = row[0], list[str]()
    if len(first) > widths[0]:
        indent = first[: len(first) - len(first.lstrip())]
        first, *more = textwrap.wrap(
            first.strip(), widths[0], initial_indent=indent, subsequent_indent=indent + GAP
        )
    cells = GAP.join(
        f"{cell:<{width}}" if column < num_text_columns else f"{cell:>{width}}"
        for column, (cell, width) in enumerate(zip((first, *row[1:]), widths, strict=True))
    )
    return [cells, *more]


def _text_span(cell: str) -> list[str]:
    indent = cell[: len(cell) - len(cell.lstrip())]
    return textwrap.wrap(cell.strip(), WIDTH, initial_indent=indent, subsequent_indent=indent + GAP)


def _markdown(document: Document) -> str:
    lines: list[str] = []
    if document.heading is not None:
        lines += [f"> {document.heading}", ""]
    for table in document.tables:
        marks = [
            ":--" if column < table.num_text_columns else "--:"
            for column in range(len(table.headings))
        ]
        rows = [(*row, *[""] * (len(table.headings) - len(row))) for row in table.rows]
        cells = [[cell.strip().replace("|", "\\|") for cell in row] for row in rows]
        lines += [
            f"**{table.title}**",
            "",
            *(f"| {' | '.join(row)} |" for row in (table.headings, marks, *cells)),
            "",
        ]
    lines += [f"- {note}" for note in document.notes]
    return "\n".join(map(visible, lines)) + "\n"


def _html(document: Document) -> str:
    # Its table of entities takes longer to import than a preview's text to print.
    import html

    parts = ['<section class="cost">']
    if document.heading is not None:
        parts.append(f'<p class="heading">{html.escape(document.heading)}</p>')
    for table in document.tables:
        parts += [f"<table><caption>{html.escape(table.title)}</caption>", "<thead><tr>"]
        kinds = [
            "" if i < table.num_text_columns else " class=number"
            for i in range(len(table.headings))
        ]
        parts += [
            f"<th{kind}>{html.escape(heading)}</th>"
            for kind, heading in zip(kinds, table.headings, strict=True)
        ]
        parts.append("</tr></thead><tbody>")
        for index, row in enumerate(table.rows):
            cells = "".join(
                f"<td{kind}>{html.escape(cell.strip())}</td>"
                for kind, cell in zip(kinds, row, strict=False)
            )
            if len(row) == 1:
                width = len(table.headings)
                parts.append(
                    f"<tr class=cause><td colspan={width}>{html.escape(row[0].strip())}</td></tr>"
                )
                continue
            kind = "" if any(row[1:]) else " class=section"
            parts.append(f"<tr{' class=bad' if index in table.bad_rows else kind}>{cells}</tr>")
        parts.append("</tbody></table>")
    if document.figures:
        figures = "\n".join(f"<figure>{figure}</figure>" for figure in document.figures)
        parts.append(f'<div class="figures">{figures}</div>')
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in document.notes)
    parts += [f'<ul class="notes">{notes}</ul>', "</section>"]
    return "\n".join(parts) + "\n"


def span(low: str, high: str, to: str) -> str:
    """One text when both ends look the same, else both."""
    return low if low == high else f"{low}{to}{high}"


def usd_text(usd: Decimal) -> str:
    """Dollars and cents."""
    return f"${rounded(usd, Decimal('0.01')):,f}"


def small_usd_text(usd: Decimal) -> str:
    """Cents from a dollar up, three significant digits below, so that small costs stay visible."""
    if usd >= 1 or usd == 0:
        return usd_text(usd)
    step = Decimal(1).scaleb(usd.adjusted() - 2)
    return f"${rounded(usd, step):f}"
