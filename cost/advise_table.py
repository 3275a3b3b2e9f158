"""Prints an advice: render_advice(advice, format), text, markdown, HTML, JSON or CSV.

Owns its words and its plain values. Computes nothing but roundings.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Final

from cost.advise import Advice, Candidate, Verdict
from cost.advise_ask import Ask, Promise
from cost.advise_load import LENGTH_TOLERANCE, Basis
from cost.advise_peaks import BANDWIDTH_SHARE, FLOPS_SHARE
from cost.chat_table import percent
from cost.csv_text import csv_text
from cost.layout import UNKNOWN, Document, Format, Table, lay_out, small_usd_text
from cost.page import page
from cost.rounding import short
from cost.summary import number

SCHEMA_VERSION: Final = 1
_SIZED: Final = (Verdict.RANKED, Verdict.UNPRICED)


def render_advice(advice: Advice, format: Format = Format.TABLE, notes: Sequence[str] = ()) -> str:
    """The advice in the format, ending in a newline; `notes` say where its inputs come from."""
    if format is Format.JSON:
        return json.dumps(plain_advice(advice, notes), indent=2) + "\n"
    if format is Format.CSV:
        rows = [_plain(each, advice.ask) for each in advice.candidates]
        return csv_text([tuple(rows[0]), *(tuple(row.values()) for row in rows)])
    document = Document(
        heading=heading(advice), tables=_tables(advice), notes=tuple(_notes(advice, notes))
    )
    text = lay_out(document, format)
    if format is Format.HTML:
        return page(f"Presets for {advice.ask.shape.name}", [text])
    return text


def heading(advice: Advice) -> str:
    """The question and its answer in two sentences."""
    ask, best = advice.ask, advice.winner
    question = (
        f"{ask.shape.name}: {ask.chats_per_day:,} chats a day of {ask.input_tokens:,} tokens read "
        f"before each of {_answers(ask)} and {ask.output_tokens:,} written, {ask.promise}."
    )
    if best is None or best.usd_per_chat is None:
        return f"{question} NO PRESET keeps this: see why under each."
    gpus = "" if best.ways == 1 else f" of {best.ways} GPUs"
    return (
        f"{question} Best: {_count(best.nodes, 'node')} {best.name} with "
        f"{_count(best.servers, 'server')}{gpus}, {small_usd_text(best.usd_per_chat)} a chat "
        f"({best.basis})."
    )


def plain_advice(advice: Advice, notes: Sequence[str] = ()) -> dict[str, object]:
    """The advice as JSON values; numbers with places are text."""
    ask, best = advice.ask, advice.winner
    promise = ask.promise
    return {
        "schema_version": SCHEMA_VERSION,
        "model": ask.shape.name,
        "chats_per_day": ask.chats_per_day,
        "turns": ask.turns,
        "input_tokens": ask.input_tokens,
        "output_tokens": ask.output_tokens,
        "cached_share": number(ask.cached_share),
        "peak_factor": number(ask.peak_factor),
        "peak_answers_per_s": number(ask.peak_answers_per_s),
        "region": ask.region,
        "slo": {
            "ttft_p99_s": _text(promise.ttft_p99_s),
            "tpot_p99_ms": _text(promise.tpot_p99_ms),
        },
        "best": None if best is None else best.name,
        "candidates": [_plain(each, ask) for each in advice.candidates],
        "notes": list(_notes(advice, notes)),
    }


def _plain(each: Candidate, ask: Ask) -> dict[str, object]:
    load = each.load
    in_flight = None if load is None else ask.peak_answers_per_s * load.answer_s
    return {
        "platform": each.platform,
        "preset": each.preset.name,
        "verdict": each.verdict.label,
        "reason": each.reason,
        "basis": None if each.verdict is Verdict.ELSEWHERE else str(each.basis),
        "source": each.source or None,
        "region": each.region or None,
        "nodes": each.nodes,
        "servers": each.servers,
        "gpus_per_server": each.ways,
        "streams_per_server": None if load is None else load.streams,
        "answers_per_s_per_server": None if load is None else number(load.answers_per_s),
        "output_tokens_per_s_per_server": None
        if load is None
        else number(load.output_tokens_per_s),
        "ttft_p99_s": None if load is None else _text(load.ttft_p99_s),
        "tpot_p99_ms": None if load is None else _text(load.tpot_p99_ms),
        "chats_in_flight": _text(in_flight),
        "peak_use": _text(each.peak_use(ask)),
        "usd_per_hour": _text(each.usd_per_hour),
        "usd_per_chat": None if each.usd_per_chat is None else f"{each.usd_per_chat:.9f}",
    }


def _tables(advice: Advice) -> tuple[Table, ...]:
    sized = [each for each in advice.candidates if each.verdict in _SIZED]
    others = [each for each in advice.candidates if each.verdict not in _SIZED]
    tables: list[Table] = []
    if sized:
        tables.append(
            Table(
                title="Presets that keep the SLO, serving nodes alone, the cheapest first",
                headings=(
                    "Preset",
                    "Basis",
                    "Nodes",
                    "Servers",
                    "Streams",
                    "TTFT p99",
                    "TPOT p99",
                    "USD/h",
                    "USD/Chat",
                ),
                rows=tuple(row for each in sized for row in _rows(each, advice.ask)),
                num_text_columns=2,
            )
        )
    if others:
        tables.append(
            Table(
                title="Presets that do not",
                headings=("Preset", "Why not"),
                rows=tuple((each.name, each.reason) for each in others),
                num_text_columns=2,
            )
        )
    return tuple(tables)


def _rows(each: Candidate, ask: Ask) -> Iterator[tuple[str, ...]]:
    load, use = each.load, each.peak_use(ask)
    assert load is not None
    ttft, tpot, usd = load.ttft_p99_s, load.tpot_p99_ms, each.usd_per_hour
    yield (
        each.name,
        str(each.basis),
        str(each.nodes),
        str(each.servers),
        str(load.streams),
        UNKNOWN if ttft is None else f"{short(ttft)} s",
        UNKNOWN if tpot is None else f"{short(tpot)} ms",
        UNKNOWN if usd is None else small_usd_text(usd),
        UNKNOWN if each.usd_per_chat is None else small_usd_text(each.usd_per_chat),
    )
    used = [] if use is None else [f"{percent(use)} used at the peak"]
    yield (f"    {'; '.join([each.reason, *used])}",)


def _notes(advice: Advice, given: Sequence[str]) -> Iterator[str]:
    ask, best = advice.ask, advice.winner
    yield from given
    demand = (
        f"Demand: {ask.chats_per_day:,} chats a day with {_answers(ask)} each, "
        f"{short(ask.peak_factor)} times the mean at the peak: {short(ask.peak_answers_per_s)} "
        "answers a second"
    )
    if best is not None and best.load is not None:
        in_flight = ask.peak_answers_per_s * best.load.answer_s
        demand += f", {short(in_flight)} at once on the best (Little's law)"
    yield f"{demand}."
    bases = _bases(advice.candidates)
    if Basis.ESTIMATE in bases:
        yield (
            "estimate: roofline. A step reads the weights and every stream's keys and values at "
            f"{percent(BANDWIDTH_SHARE.ratio)} of the memory's peak, a prompt takes 2 operations a "
            f"weight and token at {percent(FLOPS_SHARE.ratio)} of the dense bf16 peak; GPUs of one "
            "server pass sums between them, the time to start each left out. Measure before you "
            "buy: soperator load."
        )
    if best is not None and (best.servers or 0) > 1 and ask.promise != Promise():
        yield (
            f"Router: {best.servers} servers keep the SLO behind one that evens out, each chat to "
            "the server with the fewest in flight (HAProxy: balance leastconn) or to each in "
            "turn. Behind one that draws at random, such as a Service of Kubernetes, chats wait "
            "for a stream, which these latencies do not count."
        )
    for each in advice.candidates:
        if each.basis is Basis.MEASURED:
            yield f"measured: {each.name}: {each.source}; a server is the whole node."
    for why in advice.left_aside:
        yield f"Left aside (over {percent(LENGTH_TOLERANCE)} off): {why}."
    yield (
        "USD are nodes on demand where they are cheapest, without disks and the rest of a cluster; "
        "`soperator chat-cost` has the whole stack. Arithmetic: --explain PLATFORM/PRESET."
    )


def _bases(candidates: Iterable[Candidate]) -> set[Basis]:
    return {each.basis for each in candidates}


def _answers(ask: Ask) -> str:
    return _count(ask.turns, "answer")


def _count(number: int | None, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _text(value: Decimal | None) -> str | None:
    return None if value is None else number(value)
