"""Which preset answers the chats for the fewest dollars: advise(ask, book, curves) -> Advice.

A server is sized at the load with the most answers a second that keeps the promise; servers are as
many as the peak needs, nodes as many as hold them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum
from typing import Final

from cost.chat.speeds import HOURS_PER_DAY, Basis
from cost.chat.unit_costs import percent
from cost.choose.servers import (
    BANDWIDTH_SHARE,
    FLOPS_SHARE,
    LENGTH_TOLERANCE,
    LINK_SOURCE,
    PEAKS,
    SLO_NAMES,
    Ask,
    Estimate,
    Load,
    Measured,
    Promise,
    Server,
    best_estimate,
    best_load,
    estimate,
    missing_bytes,
)
from cost.prices.book import PriceBook, UnknownPrice
from cost.report.layout import (
    UNKNOWN,
    Explanation,
    Format,
    Input,
    Report,
    Table,
    headed,
    known_figures,
    number,
    picked,
    render_report,
    rounded,
    short,
    small_usd_text,
)
from cost.resources.lines import Rate
from cost.size.choice import cheapest_rate, gib_text, gpu_presets, server_ways
from cost.size.memory import usable_bytes
from cost.traced import leaf, leaves, traced
from stacks.catalog import PLATFORMS, Preset
from stacks.errors import UserError


class Verdict(IntEnum):
    """What becomes of a candidate, the best first."""

    RANKED = 0
    """Keeps the promise, fits and has a price."""
    UNPRICED = 1
    MISSES_SLO = 2
    DOES_NOT_FIT = 3
    ELSEWHERE = 4
    """Its platform is not in the region that was asked for."""

    @property
    def label(self) -> str:
        """The verdict in JSON."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One preset with as many servers as the chats need."""

    platform: str
    preset: Preset
    verdict: Verdict = Verdict.RANKED
    reason: str = ""
    """Why it wins or loses, in one line."""
    basis: Basis = Basis.ESTIMATE
    source: str = ""
    """The job that measured it; empty for an estimate."""
    ways: int = 1
    """GPUs of one server; a measured server is a whole node."""
    load: Load | None = None
    """What one server is run at; None where no load is feasible."""
    estimate: Estimate | None = None
    """The terms of an estimated load."""
    servers: int | None = None
    nodes: int | None = None
    rate: Rate | None = None
    """US dollars an hour of one node, without its disks."""
    region: str = ""
    """Where that price holds."""
    usd_per_chat: Decimal | None = None

    @property
    def name(self) -> str:
        """Platform and preset."""
        return f"{self.platform}/{self.preset.name}"

    @property
    def servers_per_node(self) -> int:
        """Servers that a node has GPUs for."""
        return self.preset.gpus // self.ways

    @property
    def usd_per_hour(self) -> Decimal | None:
        """US dollars an hour of all its nodes."""
        if self.rate is None or self.nodes is None:
            return None
        return self.nodes * self.rate.usd

    def peak_use(self, ask: Ask) -> Decimal | None:
        """The peak over what the servers hold, a ratio up to 1."""
        if self.load is None or self.servers is None:
            return None
        return ask.peak_answers_per_s / (self.servers * self.load.answers_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Every preset for one question, the cheapest that keeps the promise first."""

    ask: Ask
    candidates: tuple[Candidate, ...]
    left_aside: tuple[str, ...]
    """Why a measured curve was not used."""

    @property
    def winner(self) -> Candidate | None:
        """The cheapest that keeps the promise; None: none does."""
        first = self.candidates[0]
        return first if first.verdict is Verdict.RANKED else None


def advise(ask: Ask, book: PriceBook, curves: Sequence[Measured] = ()) -> Advice:
    """Every GPU preset of the catalog, ranked; curves count where their requests are like those."""
    judged = [(each, each.why_aside(ask)) for each in curves]
    used = [each for each, why in judged if why is None]
    found = [
        min(_tries(ask, book, Candidate(platform=name, preset=preset), gb, used), key=_order)
        for name, preset, gb in gpu_presets()
    ]
    return Advice(
        ask=ask,
        candidates=tuple(_with_distances(sorted(found, key=_order))),
        left_aside=tuple(why for _, why in judged if why is not None),
    )


def _tries(
    ask: Ask, book: PriceBook, on: Candidate, memory_gb: int, curves: Sequence[Measured]
) -> Iterator[Candidate]:
    """Every way to serve `on` a preset: as measured, else on 1, 2, ... GPUs by estimate."""
    regions = PLATFORMS[on.platform].regions
    if ask.region is not None and ask.region not in regions:
        reason = f"not in {ask.region} (is in {', '.join(regions)})"
        yield replace(on, verdict=Verdict.ELSEWHERE, reason=reason)
        return
    rate, region = cheapest_rate(book, on.platform, on.preset.name, ask.region)
    measured = [each for each in curves if each.place == on.name]
    for curve in measured:
        yield _priced(ask, _of_curve(ask, on, curve), rate, region)
    if not measured:
        peaks, usable = PEAKS[on.platform], usable_bytes(memory_gb)
        for ways in server_ways(ask.shape, on.preset):
            server = Server(peaks=peaks, ways=ways, usable_bytes=usable)
            yield _priced(ask, _of_roofline(ask, on, server), rate, region)


def _of_curve(ask: Ask, on: Candidate, curve: Measured) -> Candidate:
    load = best_load(ask, curve.loads)
    found = replace(on, basis=Basis.MEASURED, source=curve.source, ways=on.preset.gpus, load=load)
    if load is not None:
        return found
    reason = _broken(ask, curve.loads[0]) if curve.loads else "no load was answered"
    return replace(found, verdict=Verdict.MISSES_SLO, reason=reason)


def _of_roofline(ask: Ask, on: Candidate, server: Server) -> Candidate:
    found = replace(on, ways=server.ways)
    missing = missing_bytes(server, ask, 1)
    if missing > 0:
        over = "a GPU" if server.ways == 1 else f"each of {server.ways} GPUs"
        reason = f"does not fit by {gib_text(missing)} of {over} with one chat"
        return replace(found, verdict=Verdict.DOES_NOT_FIT, reason=reason)
    best = best_estimate(server, ask)
    if best is None:
        alone = estimate(server, ask, 1)
        reason = _broken(ask, alone.load)
        return replace(found, verdict=Verdict.MISSES_SLO, reason=reason, estimate=alone)
    # The transformers engine has its model on one GPU (workloads/recipes/serve.py).
    needs = "" if server.ways == 1 else f"needs vLLM, serve.gpus={server.ways}"
    return replace(found, reason=needs, load=best.load, estimate=best)


def _broken(ask: Ask, load: Load) -> str:
    streams = "1 stream" if load.streams == 1 else f"{load.streams} streams"
    broken = ask.promise.broken(load.ttft_p99_s, load.tpot_p99_ms)
    return f"{', '.join(broken)} at {streams}"


def _priced(ask: Ask, found: Candidate, rate: Rate | UnknownPrice, region: str) -> Candidate:
    """The candidate with its servers, nodes and dollars, where a load is feasible."""
    if found.load is None:
        return found
    servers = max(1, math.ceil(ask.peak_answers_per_s / found.load.answers_per_s))
    nodes = math.ceil(Decimal(servers) / found.servers_per_node)
    sized = replace(found, servers=servers, nodes=nodes, region=region)
    if isinstance(rate, UnknownPrice):
        return replace(sized, verdict=Verdict.UNPRICED, reason=f"no price: {rate.reason}")
    return replace(sized, rate=rate, usd_per_chat=usd_per_chat(ask, nodes, rate.usd))


def usd_per_chat(ask: Ask, nodes: int, usd_per_hour: Decimal) -> Decimal:
    """US dollars a chat of so many nodes at the price of one."""
    return nodes * usd_per_hour * HOURS_PER_DAY / ask.chats_per_day


def _order(each: Candidate) -> tuple[int, Decimal, int, int, str, str]:
    """By verdict, dollars, nodes; of ways that do not serve, the one with the most GPUs."""
    feasible = each.load is not None
    return (
        each.verdict,
        Decimal(0) if each.usd_per_chat is None else each.usd_per_chat,
        each.nodes or 0,
        each.ways if feasible else -each.ways,
        each.platform,
        each.preset.name,
    )


def _with_distances(ordered: Sequence[Candidate]) -> Iterator[Candidate]:
    """Each but the first with the dollars that keep it behind."""
    first, *rest = ordered
    best = first.usd_per_chat if first.verdict is Verdict.RANKED else None
    yield first if best is None else _led(first, "the cheapest that keeps the SLO")
    for each in rest:
        if best and each.usd_per_chat is not None:  # over nodes that cost nothing is no share
            more = rounded((each.usd_per_chat / best - 1) * 100, Decimal(1))
            each = _led(each, f"cost {more:+,f} %" if more else "no cheaper")
        yield each


def _led(each: Candidate, words: str) -> Candidate:
    """The candidate with the words before its reason."""
    return replace(each, reason="; ".join(filter(None, (words, each.reason))))


SCHEMA_VERSION: Final = 1
_SIZED: Final = (Verdict.RANKED, Verdict.UNPRICED)


def render_advice(advice: Advice, format: Format = Format.TABLE, notes: Sequence[str] = ()) -> str:
    """The advice in the format, ending in a newline; `notes` say where its inputs come from."""
    report = Report(
        heading=heading(advice),
        tables=_tables(advice),
        notes=tuple(_notes(advice, notes)),
        data=lambda: plain_advice(advice, notes),
        rows=lambda: headed([_plain(each, advice.ask) for each in advice.candidates]),
        title=f"Presets for {advice.ask.shape.name}",
    )
    return render_report(report, format)


def heading(advice: Advice) -> str:
    """The question and its answer in two sentences."""
    ask, best = advice.ask, advice.winner
    question = (
        f"{ask.shape.name}: {ask.chats_per_day:,} chats a day of {ask.input_tokens:,} tokens read "
        f"before each of {_count(ask.turns, 'answer')} and {ask.output_tokens:,} written, "
        f"{ask.promise}."
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
    paths = (
        "model=shape.name chats_per_day turns input_tokens output_tokens cached_share peak_factor "
        "peak_answers_per_s region"
    )
    return {
        "schema_version": SCHEMA_VERSION,
        **picked(ask, paths),
        "slo": picked(ask.promise, " ".join(SLO_NAMES)),
        **picked(best, "best=name"),
        "candidates": [_plain(each, ask) for each in advice.candidates],
        "notes": list(_notes(advice, notes)),
    }


def _plain(each: Candidate, ask: Ask) -> dict[str, object]:
    load, usd = each.load, each.usd_per_chat
    paths = (
        "platform preset=preset.name verdict=verdict.label reason basis source region nodes "
        "servers gpus_per_server=ways"
    )
    of_load = (
        "streams_per_server=streams answers_per_s_per_server=answers_per_s "
        "output_tokens_per_s_per_server=output_tokens_per_s ttft_p99_s tpot_p99_ms"
    )
    return {
        **picked(each, paths),
        "basis": None if each.verdict is Verdict.ELSEWHERE else each.basis,
        "source": each.source or None,
        "region": each.region or None,
        **picked(load, of_load),
        "chats_in_flight": load and number(ask.peak_answers_per_s * load.answer_s),
        "peak_use": number(each.peak_use(ask)),
        **picked(each, "usd_per_hour", number),
        "usd_per_chat": None if usd is None else f"{usd:.9f}",
    }


def _tables(advice: Advice) -> tuple[Table, ...]:
    sized = [each for each in advice.candidates if each.verdict in _SIZED]
    others = [each for each in advice.candidates if each.verdict not in _SIZED]
    found = (
        Table(
            title="Presets that keep the SLO, serving nodes alone, the cheapest first",
            headings=(
                *("Preset", "Basis", "Nodes", "Servers", "Streams", "TTFT p99", "TPOT p99"),
                *("USD/h", "USD/Chat"),
            ),
            rows=tuple(row for each in sized for row in _rows(each, advice.ask)),
            num_text_columns=2,
        ),
        Table(
            title="Presets that do not",
            headings=("Preset", "Why not"),
            rows=tuple((each.name, each.reason) for each in others),
            num_text_columns=2,
        ),
    )
    return tuple(table for table in found if table.rows)


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
        small_usd_text(usd),
        small_usd_text(each.usd_per_chat),
    )
    used = [] if use is None else [f"{percent(use)} used at the peak"]
    yield (f"    {'; '.join([each.reason, *used])}",)


def _notes(advice: Advice, given: Sequence[str]) -> Iterator[str]:
    ask, best = advice.ask, advice.winner
    yield from given
    demand = (
        f"Demand: {ask.chats_per_day:,} chats a day with {_count(ask.turns, 'answer')} each, "
        f"{short(ask.peak_factor)} times the mean at the peak: {short(ask.peak_answers_per_s)} "
        "answers a second"
    )
    if best is not None and best.load is not None:
        in_flight = ask.peak_answers_per_s * best.load.answer_s
        demand += f", {short(in_flight)} at once on the best (Little's law)"
    yield f"{demand}."
    bases = {each.basis for each in advice.candidates}
    if Basis.ESTIMATE in bases:
        yield (
            "estimate: roofline. A step reads the weights and every stream's keys and values at "
            f"{percent(BANDWIDTH_SHARE.ratio)} of the memory's peak, a prompt takes 2 operations a "
            f"weight and token at {percent(FLOPS_SHARE.ratio)} of the dense bf16 peak; GPUs of one "
            "server pass sums between them, the time to start each left out. Measure before you "
            "buy: soperator runs load -s STACK."
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
        "`soperator cost chat -s STACK` has the whole stack. Arithmetic: --explain PLATFORM/PRESET."
    )


def _count(number: int | None, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


# One candidate explained: its load is estimated once more with traced numbers (cost/traced.py),
# which bring their arithmetic.
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
    # Of the shape its numbers are used: they are sums over every layer.
    given = {key: leaf(getattr(advice.ask, key), *words) for key, words in _ASKED.items()}
    ask = replace(traced(advice.ask), shape=advice.ask.shape, **given)
    return Explanation(
        item=found.name,
        title=f"{ask.shape.name} on {found.name}, {found.basis}",
        words=_FORMULA,
        figures=known_figures(*_candidate_figures(ask, found)),
        others=(Input("measured curve", found.source, "load.json of that job"),)
        if found.source
        else (),
        notes=(f"{found.verdict.label}: {found.reason}.",) if found.reason else (),
    )


_ASKED: Final = {
    "chats_per_day": ("chats a day", "--chats-per-day"),
    "turns": ("answers in a chat", "--turns or chat.turns"),
    "peak_factor": ("peak factor", "--peak-factor; 2 is assumed where none is given"),
    "input_tokens": ("input tokens of an answer", "--input-tokens or chat.context_tokens"),
    "output_tokens": ("output tokens of a chat", "--output-tokens or chat.output_tokens"),
    "cached_share": ("cached share", "chat.cached_share"),
}
"""Field of a question -> its name and source."""


def _traced_server(found: Candidate) -> Server:
    peaks = PEAKS[found.platform]
    peaks = leaves(
        peaks,
        peaks.source,
        bf16_flops="bf16 operations a second of a GPU",
        bytes_per_s="bytes a second of a GPU",
    )
    return Server(
        peaks=leaves(
            peaks, LINK_SOURCE, link_bytes_per_s="bytes a second that a GPU sends to the others"
        ),
        ways=leaf(found.ways, "GPUs of a server", "the least that are cheapest"),
        usable_bytes=0,
    )


_Figure = tuple[str, str, Decimal | None]


def _candidate_figures(ask: Ask, found: Candidate) -> Iterator[_Figure]:
    yield "demand at the peak", "answers a second", ask.peak_answers_per_s
    load = found.load
    if found.estimate is not None:
        terms = estimate(_traced_server(found), ask, found.estimate.load.streams)
        yield from _estimated_figures(found, terms)
    elif load is not None:
        at = f"measured at {load.streams} streams"
        yield f"one server, {at}", "answers a second", load.answers_per_s
        yield f"first token, 99 of 100, {at}", "seconds", load.ttft_p99_s
        yield f"each further token, 99 of 100, {at}", "milliseconds", load.tpot_p99_ms
    if load is None:
        return
    peak = leaf(Decimal(ask.peak_answers_per_s))
    answer_s = replace(load, answers_per_s=leaf(load.answers_per_s)).answer_s
    yield "one answer, all streams busy (Little's law)", "seconds", answer_s
    yield "chats in flight at the peak (Little's law)", "streams", peak * load.answer_s
    yield f"servers, rounded up to {found.servers}", "servers", peak / load.answers_per_s
    nodes = leaf(Decimal(found.servers or 0)) / found.servers_per_node
    yield f"nodes, rounded up to {found.nodes}", "nodes", nodes
    if found.rate is not None and found.nodes is not None:
        where = f"on demand in {found.region}, without disks"
        rate = leaf(found.rate.usd, "USD an hour of a node", where)
        yield "serving nodes alone", "USD a chat", usd_per_chat(ask, found.nodes, rate)


def _estimated_figures(found: Candidate, terms: Estimate) -> Iterator[_Figure]:
    load = terms.load
    if found.ways > 1:
        name = f"passing the sums of one token between {found.ways} GPUs, 2 a layer"
        yield name, "seconds", terms.passing_s
    yield "reading one prompt", "seconds", terms.read_s
    bound = "by the bytes it reads" if terms.is_bound_by_memory else "by its operations"
    yield f"one step of {load.streams} streams, {bound}", "seconds", terms.step_s
    yield "one server", "answers a second", load.answers_per_s
    waited = f"first token, 99 of 100 behind at most {terms.prompts_waited} other prompts (M/D/1)"
    yield waited, "seconds", load.ttft_p99_s
    between = "each further token, the prompts of other streams read in between"
    yield between, "milliseconds", load.tpot_p99_ms
