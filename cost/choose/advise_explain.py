"""Explains one candidate of an advice: explain_candidate(advice, candidate) -> Explanation.

The expressions are those of advise.py and servers.py with their numbers in place; a test evaluates
every one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from cost.chat.speeds import HOURS_PER_DAY, SECONDS_PER_DAY
from cost.choose.advise import Advice, Candidate
from cost.choose.demand import BANDWIDTH_SHARE, FLOPS_SHARE, LINK_SOURCE, PEAKS, Ask
from cost.choose.servers import Estimate, Load
from cost.report.explanation import Explanation, Figure, number
from cost.resources.component import Input
from stacks.errors import UserError

_FORMULA = (
    "servers = chats x turns x peak factor / 86,400 s / answers a second of one server; "
    "USD a chat = nodes x USD an hour x 24 / chats"
)


def explain_candidate(advice: Advice, name: str) -> Explanation:
    """Formula, inputs with their sources and exact arithmetic of PLATFORM/PRESET."""
    found = next((each for each in advice.candidates if each.name == name), None)
    if found is None:
        names = ", ".join(sorted(each.name for each in advice.candidates))
        raise UserError(f"{name}: no such preset; known: {names}")
    ask = advice.ask
    return Explanation(
        item=found.name,
        title=f"{ask.shape.name} on {found.name}, {found.basis}",
        formula=_FORMULA,
        inputs=tuple(_inputs(ask, found)),
        figures=tuple(_figures(ask, found)),
        notes=(f"{found.verdict.label}: {found.reason}.",) if found.reason else (),
    )


def _inputs(ask: Ask, found: Candidate) -> Iterator[Input]:
    for name, value, source in (
        ("chats a day", ask.chats_per_day, "--chats-per-day"),
        ("answers in a chat", ask.turns, "--turns or chat.turns"),
        ("peak factor", ask.peak_factor, "--peak-factor; 2 is assumed where none is given"),
        ("input tokens of an answer", ask.input_tokens, "--input-tokens or chat.context_tokens"),
        ("output tokens of a chat", ask.output_tokens, "--output-tokens or chat.output_tokens"),
        ("cached share", ask.cached_share, "chat.cached_share"),
    ):
        yield Input(name, number(value), source)
    if found.source:
        yield Input("measured curve", found.source, "load.json of that job")
    if found.estimate is not None:
        yield from _roofline_inputs(found, found.estimate)
    if found.rate is not None:
        yield Input(
            "USD an hour of a node",
            number(found.rate.usd),
            f"on demand in {found.region}, without disks",
        )


def _roofline_inputs(found: Candidate, terms: Estimate) -> Iterator[Input]:
    peaks = PEAKS[found.platform]
    for name, value, source in (
        ("weights of a step", Decimal(terms.weights), "cost/size/models.yaml or config.json"),
        ("bytes of keys and values a token", Decimal(terms.cache_bytes_per_token), "the same"),
        ("bytes a second of a GPU", peaks.bytes_per_s, peaks.source),
        ("bf16 operations a second of a GPU", peaks.bf16_flops, peaks.source),
        ("share of the bytes", BANDWIDTH_SHARE.ratio, BANDWIDTH_SHARE.source),
        ("share of the operations", FLOPS_SHARE.ratio, FLOPS_SHARE.source),
        ("GPUs of a server", Decimal(found.ways), "the least that are cheapest"),
    ):
        yield Input(name, number(value), source)
    if found.ways > 1:
        name = "bytes a second that a GPU sends to the others"
        yield Input(name, number(peaks.link_bytes_per_s), LINK_SOURCE)


def _figures(ask: Ask, found: Candidate) -> Iterator[Figure]:
    peak = ask.peak_answers_per_s
    yield Figure(
        "demand at the peak",
        "answers a second",
        f"{ask.chats_per_day} * {ask.turns} * {number(ask.peak_factor)} / "
        f"{number(SECONDS_PER_DAY)}",
        peak,
    )
    load = found.load
    if found.estimate is not None:
        yield from _estimated(ask, found, found.estimate)
    elif load is not None:
        yield from _measured(load)
    if load is None:
        return
    held = number(load.answers_per_s)
    yield Figure(
        "one answer, all streams busy (Little's law)",
        "seconds",
        f"{load.streams} / {held}",
        load.answer_s,
    )
    yield Figure(
        "chats in flight at the peak (Little's law)",
        "streams",
        f"{number(peak)} * {number(load.answer_s)}",
        peak * load.answer_s,
    )
    yield Figure(
        f"servers, rounded up to {found.servers}",
        "servers",
        f"{number(peak)} / {held}",
        peak / load.answers_per_s,
    )
    yield Figure(
        f"nodes, rounded up to {found.nodes}",
        "nodes",
        f"{found.servers} / {found.servers_per_node}",
        Decimal(found.servers or 0) / found.servers_per_node,
    )
    if found.rate is not None and found.usd_per_chat is not None:
        yield Figure(
            "serving nodes alone",
            "USD a chat",
            f"{found.nodes} * {number(found.rate.usd)} * {number(HOURS_PER_DAY)} / "
            f"{ask.chats_per_day}",
            found.usd_per_chat,
        )


def _measured(load: Load) -> Iterator[Figure]:
    for name, unit, value in (
        ("one server", "answers a second", load.answers_per_s),
        ("first token, 99 of 100", "seconds", load.ttft_p99_s),
        ("each further token, 99 of 100", "milliseconds", load.tpot_p99_ms),
    ):
        if value is not None:
            yield Figure(f"{name}, measured at {load.streams} streams", unit, number(value), value)


def _estimated(ask: Ask, found: Candidate, terms: Estimate) -> Iterator[Figure]:
    peaks, load, streams = PEAKS[found.platform], terms.load, terms.streams
    flops = f"({number(peaks.bf16_flops)} * {found.ways} * {number(FLOPS_SHARE.ratio)})"
    memory = f"({number(peaks.bytes_per_s)} * {found.ways} * {number(BANDWIDTH_SHARE.ratio)})"
    read, step = number(terms.read_s), number(terms.step_s)
    tokens = f"({ask.output_tokens} / {ask.turns})"
    read_tokens = f"({ask.input_tokens} * (1 - {number(ask.cached_share)}))"
    read_passing = step_passing = ""
    if found.ways > 1:
        passing = number(terms.passing_s)
        read_passing, step_passing = f" + {read_tokens} * {passing}", f" + {streams} * {passing}"
        link = f"({number(peaks.link_bytes_per_s)} * {number(BANDWIDTH_SHARE.ratio)})"
        yield Figure(
            f"passing the sums of one token between {found.ways} GPUs, 2 a layer",
            "seconds",
            f"2 * {ask.shape.layers} * {ask.shape.hidden} * 2 * 2 * ({found.ways} - 1) "
            f"/ {found.ways} / {link}",
            terms.passing_s,
        )
    yield Figure(
        "reading one prompt",
        "seconds",
        f"2 * {terms.weights} * {read_tokens} / {flops}{read_passing}",
        terms.read_s,
    )
    cached = f"{streams} * {terms.cache_bytes_per_token} * ({ask.input_tokens} + {tokens} / 2)"
    if terms.is_bound_by_memory:
        yield Figure(
            f"one step of {streams} streams, by the bytes it reads",
            "seconds",
            f"({terms.weights} * 2 + {cached}) / {memory}{step_passing}",
            terms.step_s,
        )
    else:
        yield Figure(
            f"one step of {streams} streams, by its operations",
            "seconds",
            f"2 * {terms.weights} * {streams} / {flops}{step_passing}",
            terms.step_s,
        )
    yield Figure(
        "one server",
        "answers a second",
        f"1 / ({read} + {tokens} * {step} / {streams})",
        load.answers_per_s,
    )
    assert load.ttft_p99_s is not None
    assert load.tpot_p99_ms is not None
    yield Figure(
        f"first token, 99 of 100 behind at most {terms.prompts_waited} other prompts (M/D/1)",
        "seconds",
        f"({number(terms.prompts_waited)} + 1) * {read} + {step}",
        load.ttft_p99_s,
    )
    yield Figure(
        "each further token, the prompts of other streams read in between",
        "milliseconds",
        f"1000 * ({step} + ({streams} - 1) * {read} / {tokens})",
        load.tpot_p99_ms,
    )
