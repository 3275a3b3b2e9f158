"""Prints an estimate and its unit costs: render(estimate, unit_costs, format).

Owns what is printed in each format; layout.py owns how tables look. Computes nothing but roundings.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from decimal import Decimal

from cost.components import CostComponent
from cost.estimate import Estimate
from cost.layout import (
    GAP,
    UNKNOWN,
    WIDTH,
    Document,
    Format,
    Table,
    lay_out,
    small_usd_text,
    span,
    usd_text,
)
from cost.price_book import HOURS_PER_MONTH
from cost.summary import basis, money, number, outputs
from cost.unit_costs import ChatCost, NotKnown, RunCost, UnitCosts

__all__ = ["WIDTH", "Format", "render"]


def render(estimate: Estimate, unit_costs: UnitCosts, format: Format = Format.TABLE) -> str:
    """The bill and the unit costs in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(_plain(estimate, unit_costs), indent=2) + "\n"
    if format is Format.CSV:
        return _csv(estimate, unit_costs)
    return lay_out(_document(estimate, unit_costs), format)


def _document(estimate: Estimate, unit_costs: UnitCosts) -> Document:
    tables = [_bill(estimate)]
    if not isinstance(unit_costs.chats, NotKnown):
        tables.append(_scenarios(unit_costs.chats, is_lower_bound=unit_costs.is_lower_bound))
    return Document(
        heading=estimate.heading, tables=tuple(tables), notes=tuple(_notes(estimate, unit_costs))
    )


def _bill(estimate: Estimate) -> Table:
    rows: list[tuple[str, ...]] = []
    section = None
    for line in estimate.components:
        if line.section is not section:
            section = line.section
            rows.append((str(section), "", "", ""))
        rows.append((f"{GAP}{line.name}", line.size, _rate(line), _monthly(line)))
    total = span(usd_text(estimate.monthly_low_usd), usd_text(estimate.monthly_high_usd), " .. ")
    bound = ", at least" if estimate.is_lower_bound else ""
    rows.append((f"Total{bound}", "", "", total))
    return Table(
        title=f"Monthly cost of {estimate.stack_name} (USD without tax, {HOURS_PER_MONTH} hours)",
        headings=("Resource", "Size", "Price", "Total Monthly"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _scenarios(chats: Sequence[ChatCost], *, is_lower_bound: bool) -> Table:
    bound = ", at least" if is_lower_bound else ""
    return Table(
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
                span(
                    small_usd_text(chat.cluster_low_usd),
                    small_usd_text(chat.cluster_high_usd),
                    "..",
                ),
                UNKNOWN if chat.serving_usd is None else small_usd_text(chat.serving_usd),
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
    return span(small_usd_text(low), small_usd_text(high), "..")


def _run_note(run: RunCost | NotKnown) -> str:
    if isinstance(run, NotKnown):
        return f"Cost per training run: {run}."
    nodes = UNKNOWN if run.nodes_usd is None else small_usd_text(run.nodes_usd)
    measured = (
        f"{run.job}, job {run.job_id}: {number(run.duration_s)} s on {run.device}, "
        f"measured on {run.date.isoformat()}"
    )
    return (
        f"Cost per training run: {small_usd_text(run.cluster_usd)} of the whole cluster, {nodes} "
        f"of the job's own nodes ({run.num_nodes}) alone ({measured})."
    )


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
        return UNKNOWN
    if line.rate.usd == 0:
        return "free"
    text = number(line.rate.usd)
    cents = max(0, 2 - len(text.partition(".")[2]))
    return f"${text if '.' in text else text + '.'}{'0' * cents}/{line.rate.per}"


def _monthly(line: CostComponent) -> str:
    low, high = line.monthly_low_usd, line.monthly_high_usd
    if low is None or high is None:
        return UNKNOWN
    return span(usd_text(low), usd_text(high), " .. ")


def _csv_usd(usd: Decimal | None) -> str:
    return "" if usd is None else money(usd)
