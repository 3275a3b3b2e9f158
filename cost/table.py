"""Prints an estimate and its unit costs: render(estimate, unit_costs, format).

Owns layout: text of at most 100 columns, markdown, csv, an HTML fragment and JSON, all in ASCII.
Computes nothing but roundings.
"""

from __future__ import annotations

import csv
import html
import io
import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Final

from cost.components import CostComponent
from cost.estimate import Estimate
from cost.price_book import HOURS_PER_MONTH
from cost.summary import basis, money, number, outputs
from cost.unit_costs import ChatCost, NotKnown, RunCost, UnitCosts

WIDTH: Final = 100
_GAP: Final = "  "
_UNKNOWN: Final = "unknown"


class Format(StrEnum):
    """What `soperator cost --format` accepts."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """Headings and rows of text; `num_text_columns` columns are left-aligned, the rest right."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    heading: str | None
    tables: tuple[_Table, ...]
    notes: tuple[str, ...]


def render(estimate: Estimate, unit_costs: UnitCosts, format: Format = Format.TABLE) -> str:
    """The bill and the unit costs in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(_plain(estimate, unit_costs), indent=2) + "\n"
    if format is Format.CSV:
        return _csv(estimate, unit_costs)
    document = _document(estimate, unit_costs)
    renderers = {Format.TABLE: _text, Format.MARKDOWN: _markdown, Format.HTML: _html}
    return renderers[format](document)


def _document(estimate: Estimate, unit_costs: UnitCosts) -> _Document:
    tables = [_bill(estimate)]
    if not isinstance(unit_costs.chats, NotKnown):
        tables.append(_scenarios(unit_costs.chats, is_lower_bound=unit_costs.is_lower_bound))
    return _Document(
        heading=estimate.heading, tables=tuple(tables), notes=tuple(_notes(estimate, unit_costs))
    )


def _bill(estimate: Estimate) -> _Table:
    rows: list[tuple[str, ...]] = []
    section = None
    for line in estimate.components:
        if line.section is not section:
            section = line.section
            rows.append((str(section), "", "", ""))
        rows.append((f"{_GAP}{line.name}", line.size, _rate(line), _monthly(line)))
    total = _span(_usd(estimate.monthly_low_usd), _usd(estimate.monthly_high_usd), " .. ")
    bound = ", at least" if estimate.is_lower_bound else ""
    rows.append((f"Total{bound}", "", "", total))
    return _Table(
        title=f"Monthly cost of {estimate.stack_name} (USD without tax, {HOURS_PER_MONTH} hours)",
        headings=("Resource", "Size", "Price", "Total Monthly"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _scenarios(chats: Sequence[ChatCost], *, is_lower_bound: bool) -> _Table:
    bound = ", at least" if is_lower_bound else ""
    return _Table(
        title=f"Cost per chat{bound} (whole cluster; one serving node alone)",
        headings=(
            "Scenario",
            "Tokens/Sec",
            "Tokens/Day",
            "Conversations/Day",
            "Est Cost/Chat",
            "One Node",
        ),
        rows=tuple(
            (
                chat.speed.scenario,
                number(chat.speed.output_tokens_per_s),
                f"{int(chat.tokens_per_day):,}",
                f"{int(chat.chats_per_day):,}",
                _span(_small_usd(chat.cluster_low_usd), _small_usd(chat.cluster_high_usd), ".."),
                _UNKNOWN if chat.serving_usd is None else _small_usd(chat.serving_usd),
            )
            for chat in chats
        ),
        num_text_columns=1,
    )


def _notes(estimate: Estimate, unit_costs: UnitCosts) -> list[str]:
    notes = [f"Not priced: {line.name}: {line.unknown}." for line in estimate.unpriced]
    if notes:
        notes.append("The totals miss what is not priced: they are lower bounds.")
    chats = unit_costs.chats
    if isinstance(chats, NotKnown):
        notes.append(f"Cost per chat: {chats}.")
    else:
        notes += [f"{basis(chat)}." for chat in chats]
        first = chats[0]
        notes.append(
            f"A chat is {unit_costs.output_tokens_per_chat} output tokens in a context of "
            f"{unit_costs.context_tokens_per_chat}, at full load all month; reading the prompt is "
            f"not counted. A month of 30 days instead of {HOURS_PER_MONTH} hours, as seed 000 "
            f"counts chats, gives {_thirty_days(first)} for {first.speed.scenario}."
        )
    notes.append(_run_note(unit_costs.run))
    day = "none" if estimate.price_date is None else estimate.price_date.isoformat()
    notes.append(
        f"Prices: book {estimate.book_name}, oldest price used {day}; {estimate.book_caveat}."
    )
    return notes


def _thirty_days(chat: ChatCost) -> str:
    """Cost per chat when the monthly bill is divided by the chats of 30 days."""
    factor = HOURS_PER_MONTH / Decimal(30 * 24)
    low, high = chat.cluster_low_usd * factor, chat.cluster_high_usd * factor
    return _span(_small_usd(low), _small_usd(high), "..")


def _run_note(run: RunCost | NotKnown) -> str:
    if isinstance(run, NotKnown):
        return f"Cost per training run: {run}."
    nodes = _UNKNOWN if run.nodes_usd is None else _small_usd(run.nodes_usd)
    measured = (
        f"{run.job}, job {run.job_id}: {number(run.duration_s)} s on {run.device}, "
        f"measured on {run.date.isoformat()}"
    )
    return (
        f"Cost per training run: {_small_usd(run.cluster_usd)} of the whole cluster, {nodes} of "
        f"the job's own nodes ({run.num_nodes}) alone ({measured})."
    )


def _text(document: _Document) -> str:
    lines: list[str] = []
    if document.heading is not None:
        lines += [*textwrap.wrap(document.heading, WIDTH), ""]
    for table in document.tables:
        lines += [*textwrap.wrap(table.title, WIDTH), *_text_table(table), ""]
    for note in document.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text_table(table: _Table) -> list[str]:
    rows = (table.headings, *table.rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(table.headings))]
    # Only names are of any length: the first column gives way so that every line fits.
    room = WIDTH - sum(widths[1:]) - len(_GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], room)
    rule = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    lines = [_text_row(row, widths, table.num_text_columns) for row in rows]
    return [rule, lines[0], rule, *lines[1:], rule]


def _text_row(row: tuple[str, ...], widths: Sequence[int], num_text_columns: int) -> str:
    cells = [
        cell if len(cell) <= width else f"{cell[: width - 3]}..."
        for cell, width in zip(row, widths, strict=True)
    ]
    return _GAP.join(
        f"{cell:<{width}}" if column < num_text_columns else f"{cell:>{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )


def _markdown(document: _Document) -> str:
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


def _html(document: _Document) -> str:
    parts = ['<section class="cost">']
    if document.heading is not None:
        parts.append(f'<p class="heading">{html.escape(document.heading)}</p>')
    for table in document.tables:
        parts += [f"<table><caption>{html.escape(table.title)}</caption>", "<thead><tr>"]
        parts += [f"<th>{html.escape(heading)}</th>" for heading in table.headings]
        parts.append("</tr></thead><tbody>")
        for row in table.rows:
            cells = "".join(
                f"<td{'' if column < table.num_text_columns else ' class=number'}>"
                f"{html.escape(cell.strip())}</td>"
                for column, cell in enumerate(row)
            )
            is_section = not any(row[1:])
            parts.append(f"<tr{' class=section' if is_section else ''}>{cells}</tr>")
        parts.append("</tbody></table>")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in document.notes)
    parts += [f'<ul class="notes">{notes}</ul>', "</section>"]
    return "\n".join(parts) + "\n"


def _csv(estimate: Estimate, unit_costs: UnitCosts) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ("section", "resource", "size", "price_usd", "per", "low_usd", "high_usd", "unknown")
    )
    for line in estimate.components:
        rate = ("", "") if line.rate is None else (number(line.rate.usd), line.rate.per)
        amounts = (_csv_usd(line.monthly_low_usd), _csv_usd(line.monthly_high_usd))
        writer.writerow((line.section, line.name, line.size, *rate, *amounts, line.unknown or ""))
    totals = (money(estimate.monthly_low_usd), money(estimate.monthly_high_usd))
    bound = "lower bound" if estimate.is_lower_bound else ""
    writer.writerow(("Total", "", "", "", "month", *totals, bound))
    if not isinstance(unit_costs.chats, NotKnown):
        writer.writerow(())
        writer.writerow(
            ("scenario", "tokens_per_s", "tokens_per_day", "chats_per_day", "cluster_low_usd",
             "cluster_high_usd", "one_node_usd", "basis")
        )  # fmt: skip
        for chat in unit_costs.chats:
            plain = _plain_chat(chat)
            writer.writerow(["" if value is None else value for value in plain.values()])
    return stream.getvalue()


def _plain(estimate: Estimate, unit_costs: UnitCosts) -> dict[str, object]:
    return {
        "stack": estimate.stack_name,
        "heading": estimate.heading,
        "price_book": estimate.book_name,
        "components": [_plain_line(line) for line in estimate.components],
        "cost": outputs(estimate, unit_costs),
        "chats": None
        if isinstance(unit_costs.chats, NotKnown)
        else [_plain_chat(chat) for chat in unit_costs.chats],
        "notes": _notes(estimate, unit_costs),
    }


def _plain_line(line: CostComponent) -> dict[str, object]:
    return {
        "section": str(line.section),
        "resource": line.name,
        "size": line.size,
        "price_usd": None if line.rate is None else number(line.rate.usd),
        "per": None if line.rate is None else line.rate.per,
        "monthly_low_usd": _csv_usd(line.monthly_low_usd) or None,
        "monthly_high_usd": _csv_usd(line.monthly_high_usd) or None,
        "unknown": line.unknown,
        "prices": [
            {"sku": price.sku, "source": price.source, "date": price.date.isoformat()}
            for price in line.prices
        ],
    }


def _plain_chat(chat: ChatCost) -> dict[str, str | None]:
    return {
        "scenario": chat.speed.scenario,
        "tokens_per_s": number(chat.speed.output_tokens_per_s),
        "tokens_per_day": number(chat.tokens_per_day),
        "chats_per_day": number(chat.chats_per_day),
        "cluster_low_usd": number(chat.cluster_low_usd),
        "cluster_high_usd": number(chat.cluster_high_usd),
        "one_node_usd": None if chat.serving_usd is None else number(chat.serving_usd),
        "basis": basis(chat),
    }


def _rate(line: CostComponent) -> str:
    if line.rate is None:
        return _UNKNOWN
    if line.rate.usd == 0:
        return "free"
    text = number(line.rate.usd)
    cents = max(0, 2 - len(text.partition(".")[2]))
    return f"${text if '.' in text else text + '.'}{'0' * cents}/{line.rate.per}"


def _monthly(line: CostComponent) -> str:
    low, high = line.monthly_low_usd, line.monthly_high_usd
    if low is None or high is None:
        return _UNKNOWN
    return _span(_usd(low), _usd(high), " .. ")


def _span(low: str, high: str, to: str) -> str:
    return low if low == high else f"{low}{to}{high}"


def _usd(usd: Decimal) -> str:
    return f"${usd.quantize(Decimal('0.01'), ROUND_HALF_UP):,f}"


def _small_usd(usd: Decimal) -> str:
    """Cents from a dollar up, three significant digits below, so that small costs stay visible."""
    if usd >= 1 or usd == 0:
        return _usd(usd)
    step = Decimal(1).scaleb(usd.adjusted() - 2)
    return f"${usd.quantize(step, ROUND_HALF_UP):f}"


def _csv_usd(usd: Decimal | None) -> str:
    return "" if usd is None else money(usd)
