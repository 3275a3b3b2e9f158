"""Prints what a chat costs (`soperator cost chat`) in every format: render_chats(bill, format)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from cost.bill.bill import Bill
from cost.chat.speeds import ChatCost, usd_on_basis
from cost.chat.table import chat_notes, chat_table
from cost.chat.unit_costs import Part, UnitCosts
from cost.report.layout import (
    Format,
    Report,
    Table,
    exact_money,
    headed,
    number,
    render_report,
    small_usd_text,
    usd_text,
)

SCHEMA_VERSION: Final = 1
_PART: Final = "break_even"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBill:
    """Another bill to share by the chats: so many US dollars for so many days."""

    usd: Decimal
    days: Decimal


def render_chats(
    bill: Bill, format: Format = Format.TABLE, shared: SharedBill | None = None
) -> str:
    """What a chat of the stack costs, in the format, ending in a newline."""
    units = bill.unit_costs
    parts = [part for part in bill.parts if part.name == _PART]
    rows = units.known_chats
    table = chat_table(units)
    return render_report(
        Report(
            heading=bill.estimate.heading,
            tables=(
                *((table,) if table is not None else ()),
                *((_shared_table(rows, shared),) if shared is not None else ()),
                *(table for part in parts for table in part.tables),
            ),
            notes=tuple(_notes(units, parts)),
            draw_figures=lambda: tuple(each for part in parts for each in part.draw_figures()),
            data=lambda: _plain(bill, rows, parts, shared),
            rows=lambda: headed([plain_chat(row) for row in rows]),
            title=f"Cost per chat of {units.stack_name}",
        ),
        format,
    )


def plain_chat(row: ChatCost) -> dict[str, object]:
    """One row as plain values: numbers as text, None where there is none."""
    speed = row.speed
    prefill = speed.prefill_tokens_per_s
    return {
        "scenario": speed.scenario,
        "basis": str(speed.basis),
        "date": None if speed.date is None else speed.date.isoformat(),
        "source": speed.source,
        "output_tokens_per_s": number(speed.output_tokens_per_s),
        "batch_size": speed.batch_size,
        "stream_tokens_per_s": number(speed.stream_tokens_per_s),
        "prefill_tokens_per_s": number(prefill),
        "prefill_basis": None if speed.prefill_basis is None else str(speed.prefill_basis),
        "tokens_per_day": int(row.tokens_per_day),
        "chats_per_day": number(row.chats_per_day),
        "demand_per_day": None if row.demand_per_day is None else int(row.demand_per_day),
        "utilisation": number(row.utilisation),
        "serving_nodes": row.serving_nodes,
        "serving_nodes_needed": row.serving_nodes_needed,
        "answer_s": number(row.answer_s),
        "meets_slo": row.meets_slo,
        "cluster_low_usd": exact_money(row.cluster_low_usd),
        "cluster_high_usd": exact_money(row.cluster_high_usd),
        "serving_usd": exact_money(row.serving_usd),
        "cluster_usd_per_1m_tokens": exact_money(row.cluster_usd_per_1m_tokens),
        "serving_usd_per_1m_tokens": exact_money(row.serving_usd_per_1m_tokens),
    }


def plain_operating(row: ChatCost) -> dict[str, object] | None:
    """The load test's point that the row is of; None for any other row."""
    point, slo = row.speed.operating, row.speed.slo
    if point is None:
        return None
    figures = {
        "output_tokens_per_s": point.output_tokens_per_s,
        "requests_per_s": point.requests_per_s,
        "goodput_requests_per_s": point.goodput_requests_per_s,
        "median_ttft_ms": point.ttft.p50_ms,
        "p99_ttft_ms": point.ttft.p99_ms,
        "median_tpot_ms": point.tpot.p50_ms,
        "p99_tpot_ms": point.tpot.p99_ms,
    }
    return {
        "scenario": row.speed.scenario,
        "concurrency": point.concurrency,
        **{name: number(value) for name, value in figures.items()},
        "slo": None if slo is None else str(slo),
    }


def _plain(
    bill: Bill, rows: Sequence[ChatCost], parts: Sequence[Part], shared: SharedBill | None
) -> dict[str, object]:
    units = bill.unit_costs
    chat = units.chat
    return {
        "schema_version": SCHEMA_VERSION,
        "stack": units.stack_name,
        "heading": bill.estimate.heading,
        "is_lower_bound": units.is_lower_bound,
        "chat": {
            "model": chat.model,
            "context_tokens": chat.context_tokens,
            "output_tokens": chat.output_tokens,
            "turns": chat.turns,
            "cached_share": number(chat.cached_share),
            "chats_per_day": chat.chats_per_day,
            "max_answer_s": number(chat.max_answer_s),
        },
        "chats": [plain_chat(row) for row in rows],
        "operating_points": [plain for row in rows if (plain := plain_operating(row)) is not None],
        "no_operating_points": [str(each) for each in units.no_operating_points],
        "shared_bill": None
        if shared is None
        else {
            "usd": number(shared.usd),
            "days": number(shared.days),
            "per_chat_usd": {
                row.speed.scenario: exact_money(usd_on_basis(row, shared.usd, shared.days))
                for row in rows
            },
        },
        **{part.name: dict(part.plain) for part in parts},
        "notes": _notes(units, parts),
    }


def _notes(units: UnitCosts, parts: Sequence[Part]) -> list[str]:
    return [*chat_notes(units), *(note for part in parts for note in part.notes)]


def _shared_table(rows: Sequence[ChatCost], shared: SharedBill) -> Table:
    return Table(
        title=f"Cost per chat when {usd_text(shared.usd)} pays for {number(shared.days)} days "
        "at full load",
        headings=("Scenario", "Chats/Day", "Cost/Chat"),
        rows=tuple(
            (
                row.speed.scenario,
                f"{int(row.chats_per_day):,}",
                small_usd_text(usd_on_basis(row, shared.usd, shared.days)),
            )
            for row in rows
        ),
    )
