"""Prints a reconciliation: render_reconciliation(found, format), text, markdown, HTML, JSON, CSV.

Owns what is printed. Computes nothing but roundings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Final

from cost.csv_text import csv_text
from cost.layout import Document, Format, Table, lay_out, usd_text
from cost.reconcile import ProductRow, Reconciliation
from cost.summary import money

SCHEMA_VERSION: Final = 1
_STEP: Final = Decimal("0.000001")
_COLUMNS: Final = (
    *("stack", "since", "until", "product", "ours_usd", "invoice_usd", "difference_usd"),
    *("verdict", "why"),
)


def render_reconciliation(found: Reconciliation, format: Format = Format.TABLE) -> str:
    """The comparison in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(_plain(found), indent=2) + "\n"
    if format is Format.CSV:
        return csv_text(_csv_rows(found))
    document = Document(heading=None, tables=(_table(found),), notes=tuple(_notes(found)))
    return lay_out(document, format)


def _table(found: Reconciliation) -> Table:
    rows: list[tuple[str, ...]] = []
    for row in found.rows:
        rows.append(
            (
                row.product,
                row.verdict,
                usd_text(row.ours_usd),
                usd_text(row.theirs_usd),
                _signed(row.difference_usd),
            )
        )
        if row.why:
            rows.append((f"  {row.why}",))
    total = found.theirs_usd - found.ours_usd
    rows.append(
        (
            "Bill of the period",
            found.verdict,
            usd_text(found.ours_usd),
            usd_text(found.theirs_usd),
            _signed(total),
        )
    )
    return Table(
        title=f"{found.stack_name} against its invoice, {found.since:%Y-%m-%d %H:%M} to "
        f"{found.until:%Y-%m-%d %H:%M} UTC (USD without tax)",
        headings=("Product", "Verdict", "Ours", "Invoice", "Difference"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _notes(found: Reconciliation) -> Iterator[str]:
    yield from found.notes
    for category, usd in found.beside_usd.items():
        yield f"{category} of {usd_text(usd)} is on the invoice and in no figure of ours."
    yield (
        "The export must hold the stack's project and nothing else; ours takes the stack as "
        "declared now and up all the time."
    )


def _plain(found: Reconciliation) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": found.stack_name,
        "file": found.file,
        "since": found.since.isoformat(),
        "until": found.until.isoformat(),
        "verdict": found.verdict.value,
        "ours_usd": money(found.ours_usd, _STEP),
        "invoice_usd": money(found.theirs_usd, _STEP),
        "products": [_plain_row(row) for row in found.rows],
        "beside_usd": {name: money(usd, _STEP) for name, usd in found.beside_usd.items()},
        "notes": list(found.notes),
    }


def _plain_row(row: ProductRow) -> dict[str, object]:
    return {
        "product": row.product.value,
        "ours_usd": money(row.ours_usd, _STEP),
        "invoice_usd": money(row.theirs_usd, _STEP),
        "difference_usd": money(row.difference_usd, _STEP),
        "verdict": row.verdict.value,
        "why": row.why or None,
    }


def _csv_rows(found: Reconciliation) -> Iterator[Sequence[object]]:
    yield _COLUMNS
    period = (found.stack_name, found.since.isoformat(), found.until.isoformat())
    for row in found.rows:
        yield (*period, *_plain_row(row).values())


def _signed(usd: Decimal) -> str:
    return f"{'+' if usd > 0 else '-' if usd < 0 else ''}{usd_text(abs(usd))}"
