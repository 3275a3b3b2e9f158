"""Which preset answers the chats for the fewest dollars: advise(ask, book, curves) -> Advice.

A server is sized at the load with the most answers a second that keeps the promise; servers are as
many as the peak needs, nodes as many as hold them. Owns the candidates, their order and the line
that explains each. Loads are advise_load.py's and advise_estimate.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal
from enum import IntEnum

from cost.advise_ask import Ask
from cost.advise_estimate import Estimate, Server, best_estimate, estimate, missing_bytes
from cost.advise_load import Basis, Load, Measured, best_load
from cost.advise_peaks import PEAKS
from cost.chat import HOURS_PER_DAY
from cost.component import Rate
from cost.price_book import PriceBook, UnknownPrice
from cost.rounding import rounded
from cost.size.choice import gpu_presets
from cost.size.gpu import usable_bytes
from cost.size.node_price import cheapest_rate
from cost.size.verdict import gib_text
from stacks.catalog import PLATFORMS, Preset


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
    verdict: Verdict
    reason: str
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
    aside = {each: why for each in curves if (why := each.why_aside(ask))}
    used = [each for each in curves if each not in aside]
    found = [
        min(_tries(ask, book, platform, preset, gb, used), key=_order)
        for platform, preset, gb in gpu_presets()
    ]
    return Advice(
        ask=ask,
        candidates=tuple(_with_distances(sorted(found, key=_order))),
        left_aside=tuple(aside.values()),
    )


def _tries(
    ask: Ask,
    book: PriceBook,
    platform: str,
    preset: Preset,
    memory_gb: int,
    curves: Sequence[Measured],
) -> Iterator[Candidate]:
    """Every way to serve on a preset: as measured, else on 1, 2, ... GPUs by estimate."""
    regions = PLATFORMS[platform].regions
    if ask.region is not None and ask.region not in regions:
        yield Candidate(
            platform=platform,
            preset=preset,
            verdict=Verdict.ELSEWHERE,
            reason=f"not in {ask.region} (is in {', '.join(regions)})",
        )
        return
    here = regions if ask.region is None else (ask.region,)
    rate, region = cheapest_rate(book, platform, preset.name, regions=here)
    measured = [each for each in curves if (each.platform, each.preset) == (platform, preset.name)]
    for curve in measured:
        yield _priced(ask, _of_curve(ask, platform, preset, curve), rate, region)
    if not measured:
        for ways in range(1, preset.gpus + 1):
            if preset.gpus % ways == 0 and ask.shape.heads % ways == 0:
                server = Server(
                    peaks=PEAKS[platform], ways=ways, usable_bytes=usable_bytes(memory_gb)
                )
                yield _priced(ask, _of_roofline(ask, platform, preset, server), rate, region)


def _of_curve(ask: Ask, platform: str, preset: Preset, curve: Measured) -> Candidate:
    load = best_load(ask, curve.loads)
    least = curve.loads[0] if curve.loads else None
    reason = "no load was answered"
    if load is None and least is not None:
        reason = _broken(ask, least)
    return Candidate(
        platform=platform,
        preset=preset,
        verdict=Verdict.MISSES_SLO if load is None else Verdict.RANKED,
        reason=reason if load is None else "",
        basis=Basis.MEASURED,
        source=curve.source,
        ways=preset.gpus,
        load=load,
    )


def _of_roofline(ask: Ask, platform: str, preset: Preset, server: Server) -> Candidate:
    found = Candidate(
        platform=platform, preset=preset, verdict=Verdict.RANKED, reason="", ways=server.ways
    )
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
    # The transformers engine has its model on one GPU (workloads/serve/config.py).
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
    servers = whole(ask.peak_answers_per_s / found.load.answers_per_s)
    nodes = whole(Decimal(servers) / found.servers_per_node)
    sized = replace(found, servers=servers, nodes=nodes, region=region)
    if isinstance(rate, UnknownPrice):
        reason = f"no price: {rate.reason}"
        verdict = max(found.verdict, Verdict.UNPRICED)
        return replace(sized, verdict=verdict, reason=reason)
    usd_per_chat = nodes * rate.usd * HOURS_PER_DAY / ask.chats_per_day
    return replace(sized, rate=rate, usd_per_chat=usd_per_chat)


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
        if best is None or each.usd_per_chat is None:
            yield each
            continue
        more = rounded((each.usd_per_chat / best - 1) * 100, Decimal(1))
        cost = "no cheaper" if more == 0 else f"cost {more:+,f} %"
        yield _led(each, cost)


def _led(each: Candidate, words: str) -> Candidate:
    """The candidate with the words before its reason."""
    return replace(each, reason="; ".join(filter(None, (words, each.reason))))


def whole(count: Decimal) -> int:
    """As many whole things as hold the count, at least one."""
    return max(1, int(count.to_integral_value(ROUND_CEILING)))
