"""The chats of a stack as a table, with the notes under it: chat_table(units)."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final

from cost.chat.speeds import Basis, ChatCost, prompt_tokens
from cost.chat.unit_costs import NotKnown, UnitCosts
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import Table, rounded, short, small_usd_text, span
from stacks.spec.cost import ChatSpec

MISSES: Final = "MISSES SLO"
NO_POINT: Final = "NO OPERATING POINT"
_SHORT_MONTH_DAYS: Final = 30
"""Published costs per chat divide the bill of a month by the chats of 30 days."""


def chat_table(units: UnitCosts) -> Table | None:
    """A row per scenario; None when no speed is known."""
    rows = units.known_chats
    if not rows:
        return None
    reads = any(row.counts_prefill for row in rows)
    bound = ", at least" if units.is_lower_bound else ""
    demand, count = units.chat.chats_per_day, units.chat.serving_nodes
    load = "at full load" if demand is None else f"at {demand:,} chats a day"
    serving = "one serving node" if count == 1 else f"{count} serving nodes"
    return Table(
        title=f"Cost per chat{bound} {load} (whole cluster; {serving} alone)",
        headings=(
            *("Scenario", "Tokens/s", *(("Reads/s",) if reads else ()), "Tokens/Day"),
            *("Chats/Day", "Est Cost/Chat", "Serving", "Answer"),
        ),
        rows=tuple(
            (
                row.speed.scenario,
                short(row.speed.output_tokens_per_s),
                *((_reads(row),) if reads else ()),
                f"{int(row.tokens_per_day):,}",
                f"{int(row.chats_per_day):,}",
                span(
                    small_usd_text(row.cluster_low_usd), small_usd_text(row.cluster_high_usd), ".."
                ),
                small_usd_text(row.serving_usd),
                answer_text(row),
            )
            for row in rows
        ),
        bad_rows=frozenset(index for index, row in enumerate(rows) if row.meets_slo is False),
    )


def _reads(row: ChatCost) -> str:
    speed = row.speed.prefill_tokens_per_s
    return "-" if speed is None else short(speed)


def chat_notes(units: UnitCosts) -> list[str]:
    """What the rows rest on, one sentence or two a note."""
    rows = units.chats
    if isinstance(rows, NotKnown):
        return [f"Cost per chat: {rows}."]
    return [
        *(f"{speed_text(row)}." for row in rows),
        *(f"{text}." for row in rows if (text := operating_text(row, units.chat))),
        *(f"{NO_POINT}: {each}; no row is of that test." for each in units.no_operating_points),
        _profile_note(units, rows),
        *_load_notes(units, rows),
        *_promise_note(units, rows),
        _month_note(rows[0]),
    ]


def answer_text(row: ChatCost) -> str:
    """Seconds of one answer, marked where they are more than promised."""
    seconds = _seconds(row.answer_s)
    return f"{seconds} {MISSES}" if row.meets_slo is False else seconds


def speed_text(row: ChatCost) -> str:
    """How fast, assumed or measured, and according to what, in one line."""
    speed, prefill = row.speed, row.speed.prefill_tokens_per_s
    day = "" if speed.date is None else f" on {speed.date.isoformat()}"
    origin = f"measured{day}" if speed.basis is Basis.MEASURED else "assumed"
    reading = "" if prefill is None else f", reads {short(prefill)} tokens/s"
    reading += f" ({speed.prefill_basis})" if reading else ""
    each = f", {short(speed.stream_tokens_per_s)} for each of {speed.batch_size} conversations"
    each = "" if speed.batch_size == 1 else each
    return (
        f"{speed.scenario}: {short(speed.output_tokens_per_s)} tokens/s{each}{reading}, {origin}:"
        f" {speed.source}"
    )


def operating_text(row: ChatCost, chat: ChatSpec) -> str:
    """The load that the row's server is run at and what it keeps; empty for any other row."""
    point, slo = row.speed.operating, row.speed.slo
    if point is None:
        return ""
    kept = "the highest load that answered everything; no SLO was declared"
    if slo is None:
        kept = "its SLO is in the load test's own result"
    elif slo.is_declared:
        kept = f"keeps {slo}"
    streams = "1 stream" if point.concurrency == 1 else f"{point.concurrency} streams"
    return (
        f"Operating point of {row.speed.scenario}: {streams}, "
        f"{short(point.output_tokens_per_s)} tokens/s, {short(point.requests_per_s)} "
        f"requests/s (goodput {short(point.goodput_requests_per_s)}), {point.latencies}; {kept}"
        f"{lengths_text(row, chat)}"
    )


def lengths_text(row: ChatCost, chat: ChatSpec) -> str:
    """The lengths that the row's load was measured with, where they are not the chat's."""
    point = row.speed.operating
    if point is None or point.mean_prompt_tokens is None:
        return ""
    read, written = short(point.mean_prompt_tokens), short(point.mean_output_tokens)
    if (read, written) == (f"{chat.context_tokens:,}", f"{chat.output_tokens // chat.turns:,}"):
        return ""
    return f" with prompts of {read} and answers of {written} tokens, taken to the chat's lengths"


def _profile_note(units: UnitCosts, rows: Sequence[ChatCost]) -> str:
    chat = units.chat
    turns = "" if chat.turns == 1 else f" in {chat.turns} turns"
    each = "" if chat.turns == 1 else f", {prompt_tokens(chat):,} prompt tokens in all"
    cached = f", {percent(chat.cached_share)} of them from a prefix cache"
    free = [row.speed.scenario for row in rows if not row.counts_prefill]
    note = (
        f"A chat is {chat.output_tokens:,} output tokens{turns} in a context of "
        f"{chat.context_tokens:,}{each}{cached if chat.cached_share else ''}."
    )
    if not free:
        return f"{note} Reading the prompt is counted."
    whose = "" if len(free) == len(rows) else f" for {', '.join(free)}"
    return (
        f"{note} Reading the prompt is not counted{whose}: no prefill speed is declared or "
        "measured."
    )


def _load_notes(units: UnitCosts, rows: Sequence[ChatCost]) -> list[str]:
    demand = units.chat.chats_per_day
    if demand is None:
        return []
    nodeset = units.chat.serving_nodeset
    of = "" if nodeset is None else f" of nodeset {nodeset}"
    return [
        f"{row.speed.scenario}: {demand:,} chats a day need {row.serving_nodes_needed} serving "
        f"nodes{of}, chat.serving_nodes is {row.serving_nodes} (utilisation "
        f"{percent(row.utilisation)}); the row is at full load."
        if row.is_over_capacity
        else f"{row.speed.scenario}: utilisation {percent(row.utilisation)}; the idle "
        f"{percent(row.idle_share)} is charged to the {demand:,} chats a day."
        for row in rows
    ]


def _promise_note(units: UnitCosts, rows: Sequence[ChatCost]) -> list[str]:
    promise = units.chat.max_answer_s
    if promise is None:
        return []
    kept = [row.speed.scenario for row in units.feasible_chats]
    missed = [row.speed.scenario for row in rows if row.meets_slo is False]
    verdict = f"kept by {', '.join(kept) or 'no row'}"
    verdict += f"; {MISSES}: {', '.join(missed)}" if missed else ""
    return [f"Promise (chat.max_answer_s): an answer in {_seconds(promise)}; {verdict}."]


def _month_note(first: ChatCost) -> str:
    """What the first row would cost where a month is 30 days, as finance reports count."""
    factor = HOURS_PER_MONTH / Decimal(_SHORT_MONTH_DAYS * 24)
    low, high = first.cluster_low_usd * factor, first.cluster_high_usd * factor
    return (
        f"A month of {_SHORT_MONTH_DAYS} days of chats instead of {HOURS_PER_MONTH} hours gives "
        f"{span(small_usd_text(low), small_usd_text(high), '..')} for {first.speed.scenario}."
    )


def percent(ratio: Decimal) -> str:
    """A ratio as percent with one digit behind the point where it has one."""
    text = f"{rounded(ratio * 100, Decimal('0.1')):,f}"
    return f"{text.removesuffix('.0')} %"


def _seconds(value: Decimal) -> str:
    """Whole seconds from ten up, tenths below."""
    step = Decimal(1) if value >= 10 else Decimal("0.1")
    return f"{rounded(value, step):,f} s"
