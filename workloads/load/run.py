"""A load test: find the server, measure its template, sweep, then open loops; and what it says.

From the samples of each loop to a Point, and from these to load.json, the table for people, the
metrics of the run record, and the verdicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError, NotRunError, WorkloadError
from workloads.common.log import at, log
from workloads.load.client import REJECTED, TIMEOUT, ChatClient, Sample, ServerLoad
from workloads.load.prompts import Arrival, Message, Rows, Words, draw_lengths, poisson, read_trace
from workloads.recipes.load import Lengths, LoadConfig, Slo

Chat = tuple[list[Message], int]
"""What one request asks, and for how many tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one loop showed."""

    samples: list[Sample]
    """All, those of the warm-up too."""
    window_s: tuple[float, float]
    """From when to when the load was steady: rates are counted in it."""


async def closed_loop(
    client: ChatClient, chats: Sequence[Chat], streams: int, num_warm_up: int
) -> Loop:
    """Keep `streams` requests underway until the chats are used up.

    The window is that in which all streams worked: from the first measured request until one of
    them finds no more. A refused stream waits as long as the server asked for.
    """
    samples: list[Sample] = []
    began_s: list[float] = []
    ended_s: list[float] = []
    left = iter(enumerate(chats))

    async def stream() -> None:
        for number, chat in left:
            is_measured = number >= num_warm_up
            if is_measured and not began_s:
                began_s.append(time.perf_counter())
            sample = await client.ask(*chat, is_measured=is_measured)
            samples.append(sample)
            if sample.retry_after_s:
                await asyncio.sleep(sample.retry_after_s)
        if not ended_s:
            ended_s.append(time.perf_counter())

    async with _task_group() as group:
        for _ in range(streams):
            group.create_task(stream())
    return Loop(samples=samples, window_s=(began_s[0], ended_s[0]))


async def open_loop(
    client: ChatClient,
    chats: Sequence[Chat],
    arrivals: Sequence[Arrival],
    num_warm_up: int,
    max_in_flight: int,
) -> Loop:
    """Send each chat at its time, however many are underway.

    A request that this side sends late (its loop was busy, or `max_in_flight` was reached) keeps
    its intended time: the wait is in its latencies, so no omission is coordinated with the server.
    """
    samples: list[Sample] = []
    room = asyncio.Semaphore(max_in_flight)
    started_s = time.perf_counter()

    async def one(number: int, chat: Chat, intended_s: float) -> None:
        async with room:
            is_measured = number >= num_warm_up
            sample = await client.ask(*chat, intended_s=intended_s, is_measured=is_measured)
        samples.append(sample)

    async with _task_group() as group:
        for number, (chat, arrival) in enumerate(zip(chats, arrivals, strict=True)):
            intended_s = started_s + arrival.at_s
            wait_s = intended_s - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            group.create_task(one(number, chat, intended_s))
    first, last = arrivals[num_warm_up].at_s, arrivals[-1].at_s
    return Loop(samples=samples, window_s=(started_s + first, started_s + last))


@contextlib.asynccontextmanager
async def _task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group whose first error comes out as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Percentiles of one latency in milliseconds."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load and what came of it."""

    loop: str
    """closed, poisson or trace."""
    concurrency: int | None
    """Streams of a closed loop; None for an open one."""
    rate_per_s: float | None
    """Intended requests/s of an open loop; None for a closed one."""
    num_requests: int
    """Measured requests, whatever came of them."""
    num_ok: int
    num_rejected: int
    """Answered 429."""
    num_errors: int
    """Failed otherwise, timeouts included."""
    errors: dict[str, int]
    """By class."""
    median_retry_after_s: float | None
    error_share: float
    """Failed, without refusals, of all; a ratio."""
    window_s: float
    output_tokens_per_s: float
    requests_per_s: float
    goodput_requests_per_s: float
    """Requests/s that keep every bound of the SLO; all answered ones where none is declared."""
    good_share: float
    """Of all measured requests, those that keep every bound."""
    keeps_slo: bool | None
    """None: nothing is promised."""
    mean_prompt_tokens: float | None
    """As the server counts; None where it does not."""
    mean_uncached_tokens: float | None
    mean_output_tokens: float
    mean_in_flight: float
    """Requests underway, by Little's law: requests/s times the mean time of one."""
    p99_send_lag_ms: float
    """How late this side sent; over a few ms this machine is the bottleneck."""
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the rising values lie, interpolated linearly."""
    place = (len(ordered) - 1) * share
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(seconds: Sequence[float]) -> Spread | None:
    """Return the percentiles in ms; None of nothing."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    p50, p90, p99 = (1000 * percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(p50_ms=p50, p90_ms=p90, p99_ms=p99, mean_ms=1000 * statistics.fmean(ordered))


def keeps(sample: Sample, slo: Slo) -> bool:
    """Whether the request was answered within every bound."""
    if not sample.is_ok:
        return False
    ttft_s, tpot_s = sample.ttft_s, sample.tpot_s
    return not (
        (slo.ttft_ms is not None and (ttft_s is None or 1000 * ttft_s > slo.ttft_ms))
        or (slo.tpot_ms is not None and tpot_s is not None and 1000 * tpot_s > slo.tpot_ms)
        or (slo.e2e_s is not None and sample.e2e_s > slo.e2e_s)
    )


def point(
    loop: Loop,
    slo: Slo,
    *,
    kind: str,
    concurrency: int | None = None,
    rate_per_s: float | None = None,
) -> Point:
    """Return the measured requests of the loop as numbers."""
    measured = [sample for sample in loop.samples if sample.is_measured]
    answered = [sample for sample in measured if sample.is_ok]
    outcomes = Counter(sample.outcome for sample in measured if not sample.is_ok)
    num_rejected = outcomes.pop(REJECTED, 0)
    num_good = sum(keeps(sample, slo) for sample in measured)
    waits = sorted(each.retry_after_s for each in measured if each.retry_after_s is not None)
    tokens_per_s, window_s = _tokens_per_s(loop)
    mean_output = _mean([each.output_tokens for each in answered]) or 0.0
    requests_per_s = tokens_per_s / mean_output if mean_output else 0.0
    good_share = num_good / len(measured) if measured else 0.0
    times_s = [each.e2e_s for each in answered]
    # A request that was given up would have taken longer still: its time is a lower bound.
    e2e_s = [*times_s, *(each.e2e_s for each in measured if each.outcome == TIMEOUT)]
    counted = [each for each in answered if each.prompt_tokens is not None]
    gaps_s = [later - earlier for each in answered for earlier, later in pairwise(each.times_s)]
    lags_s = sorted(each.sent_s - each.intended_s for each in measured)
    return Point(
        loop=kind,
        concurrency=concurrency,
        rate_per_s=rate_per_s,
        num_requests=len(measured),
        num_ok=len(answered),
        num_rejected=num_rejected,
        num_errors=sum(outcomes.values()),
        errors=dict(sorted(outcomes.items())),
        median_retry_after_s=percentile(waits, 0.5) if waits else None,
        error_share=sum(outcomes.values()) / len(measured) if measured else 0.0,
        window_s=window_s,
        output_tokens_per_s=tokens_per_s,
        requests_per_s=requests_per_s,
        goodput_requests_per_s=requests_per_s * num_good / len(answered) if answered else 0.0,
        good_share=good_share,
        keeps_slo=good_share >= slo.share if slo.is_declared else None,
        mean_prompt_tokens=_mean([each.prompt_tokens or 0 for each in counted]),
        mean_uncached_tokens=_mean(
            [(each.prompt_tokens or 0) - each.cached_tokens for each in counted]
        ),
        mean_output_tokens=mean_output,
        mean_in_flight=requests_per_s * (_mean(times_s) or 0.0),
        p99_send_lag_ms=1000 * percentile(lags_s, 0.99) if lags_s else 0.0,
        ttft=spread([each.ttft_s for each in answered if each.ttft_s is not None]),
        tpot=spread([each.tpot_s for each in answered if each.tpot_s is not None]),
        itl=spread(gaps_s),
        e2e=spread(e2e_s),
    )


def _tokens_per_s(loop: Loop) -> tuple[float, float]:
    """Output tokens/s within the steady window, of every request that wrote in it, and its length.

    Tokens of an event share its time. A window too short to hold what was measured (few requests)
    is taken to the last token instead.
    """
    written = [each for each in loop.samples if len(each.times_s)]
    if not written:
        return 0.0, max(0.0, loop.window_s[1] - loop.window_s[0])
    began_s, ended_s = loop.window_s
    if ended_s <= began_s:
        ended_s = max(each.times_s[-1] for each in written)
    tokens = 0.0
    for each in written:
        inside = sum(began_s < moment <= ended_s for moment in each.times_s)
        tokens += each.output_tokens * inside / len(each.times_s)
    window_s = max(ended_s - began_s, 1e-9)
    return tokens / window_s, window_s


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


_LEAST_REQUESTS = 8
_ARRIVALS_A_WARM_UP = 16
_STAGE_TRIES = 2
"""Runs of a stage in which others used the server, before the test gives up."""
_SETTLED_S = 3.0
"""Within this a server has counted an answer that has ended, or a client that went away."""


@dataclass(slots=True)
class Found:
    """What the test has so far; whole also when it ends early."""

    model: str = ""
    engine: str | None = None
    points: list[Point] = field(default_factory=list)
    samples: int = 0
    errors: int = 0
    first_error: str = ""
    cpu_share: float = 0.0
    """CPU time of this process over wall time while it measured, of one core."""

    def see(self, loop: Loop) -> None:
        """Count what failed, the warm-up's too."""
        self.samples += len(loop.samples)
        for sample in loop.samples:
            if sample.is_error:
                self.errors += 1
                self.first_error = self.first_error or f"{sample.outcome}: {sample.detail}"


class LoadTest:
    """One test against one server."""

    def __init__(
        self, config: LoadConfig, client: ChatClient, prompts: Rows | Words, trace: Path | None
    ) -> None:
        self._config = config
        self._client = client
        self._prompts = prompts
        self._trace = None if trace is None else read_trace(trace)
        self._next_chat = 0
        self._seen: ServerLoad | None = None
        """What the server had counted when the last stage had ended."""
        self.found = Found()

    async def run(self) -> None:
        """Fill `found`; WorkloadError when the server cannot be asked or is gone."""
        models = {each.name: each for each in await self._client.models()}
        wanted = self._config.target.model or list(models)[-1]
        if wanted not in models:
            raise ConfigError(
                f"{self._client.url}: no model '{wanted}' (has: {', '.join(models)}); set "
                "load.target.model to one of these"
            )
        self._check_context(models[wanted].context_tokens)
        self.found.engine = self._config.target.engine or models[wanted].engine
        self.found.model = self._client.model = wanted
        log(f"load test of {self.found.model} at {self._client.url}")
        self._seen = await self._client.traffic()
        if self._seen is None:
            log("the server counts no requests in /metrics: whether others use it is not known")
        await self._measure_template()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        try:
            for streams in self._config.sweep:
                await self._closed(streams)
            await self._open()
        finally:
            wall_s = time.perf_counter() - wall_s
            self.found.cpu_share = (time.process_time() - cpu_s) / max(wall_s, 1e-9)
            self._client.close()

    def _check_context(self, context_tokens: int | None) -> None:
        """Refuse lengths that the server would: an error is no measurement."""
        config = self._config
        prompt, output = (longest(each) for each in (config.prompt_tokens, config.output_tokens))
        if context_tokens is not None and prompt + output > context_tokens:
            raise ConfigError(
                f"load.prompt_tokens and load.output_tokens: up to {prompt} + {output} tokens, "
                f"the server takes {context_tokens} in all; lower their mean or most"
            )

    async def _measure_template(self) -> None:
        """Ask one short chat: is the request understood, and what does the template add?"""
        chat = self._prompts.chat(-1, 16)
        sample = await self._client.ask(chat, 1, is_measured=False)
        if not sample.is_ok:
            hint = "; it may not know ignore_eos: set load.ignore_eos=false"
            raise WorkloadError(
                f"{self._client.url}: the first chat failed: {sample.outcome}: {sample.detail}"
                f"{hint if sample.outcome == 'http_400' and self._config.ignore_eos else ''}"
            )
        if isinstance(self._prompts, Words) and sample.prompt_tokens is not None:
            added = sample.prompt_tokens - self._prompts.count(chat[0]["content"])
            self._prompts.template_tokens = max(0, added)
        await self._num_others(1)

    async def _closed(self, streams: int) -> None:
        config = self._config
        num_warm_up = streams * config.warm_up_requests
        count = max(_LEAST_REQUESTS, streams * config.requests_per_stream)

        async def once() -> Loop:
            chats = self._chats(num_warm_up + count)
            return await closed_loop(self._client, chats, streams, num_warm_up)

        await self._stage(f"{streams} streams", once, kind="closed", concurrency=streams)

    async def _open(self) -> None:
        config = self._config.open_loop
        if self._trace is not None:
            num_warm_up = min(self._num_warm_up(len(self._trace)), len(self._trace) - 2)
            length_s = self._trace[-1].at_s - self._trace[0].at_s
            rate = (len(self._trace) - 1) / length_s if length_s > 0 else float(len(self._trace))
            await self._arrivals(self._trace, num_warm_up, "trace", rate)
        most = max((each.requests_per_s for each in self.found.points), default=0.0)
        rates = config.rates_per_s or tuple(share * most for share in config.shares)
        for number, rate in enumerate(rates):
            if rate > 0:
                num_warm_up = self._num_warm_up(config.requests)
                total = config.requests + num_warm_up
                arrivals = poisson(rate, total, self._config.seed + number)
                await self._arrivals(arrivals, num_warm_up, "poisson", rate)

    async def _arrivals(
        self, arrivals: Sequence[Arrival], num_warm_up: int, kind: str, rate_per_s: float
    ) -> None:

        async def once() -> Loop:
            chats = self._chats(len(arrivals), arrivals)
            return await open_loop(
                self._client, chats, arrivals, num_warm_up, self._config.max_in_flight
            )

        await self._stage(f"{rate_per_s:.3g} req/s", once, kind=kind, rate_per_s=rate_per_s)

    async def _stage(self, load: str, once: Callable[[], Awaitable[Loop]], **of: Any) -> None:
        """Keep the point of a loop during which the server answered nobody else."""
        num_others = 0
        for _ in range(_STAGE_TRIES):
            at(f"{of['kind']} loop at {load}")
            loop = await once()
            num_others = await self._num_others(len(loop.samples))
            if not num_others:
                break
            log(f"{load}: {num_others} requests of others meanwhile: it does not count")
        else:
            raise NotRunError(
                f"{self._client.url}: others use this server: {num_others} requests of theirs "
                f"beside {load}, in each of {_STAGE_TRIES} runs, so no speed is measured; stop "
                "them, or start a server for the test alone (soperator serve -s STACK), and run it "
                "again"
            )
        made = point(loop, self._config.slo, **of)
        self.found.see(loop)
        self.found.points.append(made)
        ttft = f", TTFT p99 {made.ttft.p99_ms:,.0f} ms" if made.ttft else ""
        log(
            f"{made.loop} loop at {load}: {made.output_tokens_per_s:,.1f} tokens/s, "
            f"{made.requests_per_s:.3g} req/s{ttft}, {made.num_ok} of {made.num_requests} answered"
        )

    async def _num_others(self, num_own: int) -> int:
        """Return how many requests of others ended since the last look, or are underway."""
        before, until_s = self._seen, time.monotonic() + _SETTLED_S
        while before is not None and (now := await self._client.traffic()) is not None:
            ended = (now.num_ended or 0) - (before.num_ended or 0)
            if (ended >= num_own and not now.num_underway) or time.monotonic() > until_s:
                self._seen = now
                return max(0, round(ended + now.num_underway - num_own))
            await asyncio.sleep(0.05)
        return 0

    def _num_warm_up(self, count: int) -> int:
        return self._config.warm_up_requests * -(-count // _ARRIVALS_A_WARM_UP)

    def _chats(self, count: int, arrivals: Sequence[Arrival] | None = None) -> list[Chat]:
        """Return the next chats; a length that the trace names wins over a drawn one."""
        first, self._next_chat = self._next_chat, self._next_chat + count
        seed = f"{self._config.seed} {first}"
        prompts = draw_lengths(self._config.prompt_tokens, count, f"prompt {seed}")
        outputs = draw_lengths(self._config.output_tokens, count, f"output {seed}")
        chats: list[Chat] = []
        for number in range(count):
            arrival = None if arrivals is None else arrivals[number]
            prompt = (arrival and arrival.prompt_tokens) or prompts[number]
            output = (arrival and arrival.output_tokens) or outputs[number] or 1
            chats.append((self._prompts.chat(first + number, prompt), output))
        return chats


def longest(lengths: Lengths) -> int:
    """Return the most tokens that can be drawn; 0 where rows have their own lengths."""
    if lengths.mean is None:
        return 0
    most = lengths.most or 4 * lengths.mean
    return min(lengths.mean, most) if lengths.distribution == "fixed" else most


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Tokens a second of one server, all its streams together."""

    output_tokens_per_s: float
    prefill_tokens_per_s: float | None
    """Prompt tokens; None: reading took no time that can be told from writing."""


def operating_point(points: Sequence[Point]) -> Point | None:
    """Return the closed-loop point of the highest throughput that keeps the SLO; None: none does.

    Without a promise every point that answered all its requests counts.
    """
    feasible = [each for each in points if each.concurrency is not None and _is_feasible(each)]
    return max(feasible, key=lambda each: each.output_tokens_per_s, default=None)


def operating_rate(points: Sequence[Point]) -> Point | None:
    """Return the Poisson point of the highest rate that keeps the SLO; None: none does."""
    feasible = [each for each in points if each.loop == "poisson" and _is_feasible(each)]
    return max(feasible, key=lambda each: each.rate_per_s or 0.0, default=None)


def _is_feasible(each: Point) -> bool:
    if each.keeps_slo is None:
        return 0 < each.num_ok == each.num_requests
    return each.keeps_slo and each.num_ok > 0


def single_speeds(one: Point) -> Speeds | None:
    """Return the speeds of one stream: the time to the first token holds reading and one token."""
    if not one.output_tokens_per_s or one.ttft is None:
        return None
    answer_s = one.mean_output_tokens / one.output_tokens_per_s
    write_s = one.mean_output_tokens * (one.tpot.mean_ms if one.tpot else 0.0) / 1000
    read_s = answer_s - write_s
    if write_s <= 0 or read_s <= 0 or not one.mean_uncached_tokens:
        return Speeds(output_tokens_per_s=one.output_tokens_per_s, prefill_tokens_per_s=None)
    return Speeds(
        output_tokens_per_s=one.mean_output_tokens / write_s,
        prefill_tokens_per_s=one.mean_uncached_tokens / read_s,
    )


def batch_speeds(single: Speeds, many: Point) -> Speeds:
    """Return the speeds of a full batch; with the lengths of the test they give its throughput.

    Reading is bound by arithmetic, which one prompt fills: its speed is that of one prompt, and
    writing has the rest of the time. Where that would have written more than `concurrency` times as
    fast as one stream, which no batch does, reading was faster instead.
    """
    assert many.concurrency is not None
    answer_s = many.mean_output_tokens / many.output_tokens_per_s
    if single.prefill_tokens_per_s is None or many.mean_uncached_tokens is None:
        return Speeds(output_tokens_per_s=many.output_tokens_per_s, prefill_tokens_per_s=None)
    fastest = many.concurrency * single.output_tokens_per_s
    read_s = many.mean_uncached_tokens / single.prefill_tokens_per_s
    write_s = max(answer_s - read_s, many.mean_output_tokens / fastest)
    # The figures of two loops never agree to the last digit; some time was spent reading.
    read_s = max(answer_s - write_s, read_s / many.concurrency)
    write_s = max(answer_s - read_s, 1e-9)
    return Speeds(
        output_tokens_per_s=many.mean_output_tokens / write_s,
        prefill_tokens_per_s=many.mean_uncached_tokens / read_s if read_s > 0 else None,
    )


def record_metrics(points: Sequence[Point]) -> dict[str, float | int]:
    """Return the metrics of the run record, under the names that cost/chat/speeds.py reads.

    The batch is that of the operating point: no speed is priced at which the promise breaks.
    """
    found: dict[str, float | int] = {}
    one = next((each for each in points if each.concurrency == 1), None)
    single = single_speeds(one) if one is not None and one.num_ok else None
    if single is not None:
        found |= _named("", single)
    best = operating_point(points)
    if best is not None:
        for name in ("ttft", "tpot", "itl", "e2e"):
            if (spread := getattr(best, name)) is not None:
                found[f"median_{name}_ms"] = spread.p50_ms
                found[f"p90_{name}_ms"] = spread.p90_ms
                found[f"p99_{name}_ms"] = spread.p99_ms
        found |= {
            "operating_concurrency": best.concurrency or 0,
            "operating_output_tokens_per_s": best.output_tokens_per_s,
            "operating_requests_per_s": best.requests_per_s,
            "operating_goodput_requests_per_s": best.goodput_requests_per_s,
            "mean_output_tokens": best.mean_output_tokens,
        }
        if best.mean_prompt_tokens is not None:
            found["mean_prompt_tokens"] = best.mean_prompt_tokens
        if single is not None and best.concurrency is not None and best.concurrency > 1:
            found |= {"batch_size": best.concurrency} | _named("batch_", batch_speeds(single, best))
    rate = operating_rate(points)
    if rate is not None and rate.rate_per_s is not None:
        found["open_loop_requests_per_s"] = rate.rate_per_s
    return found


def _named(prefix: str, speeds: Speeds) -> dict[str, float]:
    return {f"{prefix}{name}": each for name, each in asdict(speeds).items() if each is not None}


SCHEMA_VERSION = 1
PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
_HEADERS = (
    "load", "tok/s", "req/s", "good/s", "TTFT p50/p90/p99 ms", "TPOT p50/p90/p99 ms",
    "ITL p50/p90/p99 ms", "E2E p50/p90/p99 ms", "429", "errors", "SLO"
)  # fmt: skip


def slo_verdict(found: Found, config: LoadConfig) -> str:
    """Return PASS when a point keeps the SLO, FAIL when none does, NOT RUN without one."""
    if not config.slo.is_declared or not found.points:
        return NOT_RUN
    return PASS if any(each.keeps_slo for each in found.points) else FAIL


def errors_verdict(found: Found, config: LoadConfig) -> str:
    """Return whether as few failed as the settings allow; NOT RUN where none was answered."""
    if found.errors > config.max_error_share * found.samples:
        return FAIL
    return PASS if any(each.num_ok for each in found.points) else NOT_RUN


def to_json(found: Found, config: LoadConfig, url: str) -> dict[str, Any]:
    """Return the content of load.json."""
    best, rate = operating_point(found.points), operating_rate(found.points)
    return {
        "schema_version": SCHEMA_VERSION,
        "url": url,
        "model": found.model,
        "slo": asdict(config.slo),
        "verdicts": {"errors": errors_verdict(found, config), "slo": slo_verdict(found, config)},
        "curve": [asdict(each) for each in found.points],
        "operating_point": None if best is None else asdict(best),
        "operating_rate": None if rate is None else asdict(rate),
        "client_cpu_share": found.cpu_share,
    }


def table(found: Found) -> str:
    """Return the curve as lines of aligned columns."""
    rows = [_HEADERS, *(_row(each) for each in found.points)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def summary(found: Found, config: LoadConfig) -> str:
    """Return the operating point in one line."""
    verdict = slo_verdict(found, config)
    best = operating_point(found.points)
    promise = "no SLO declared" if verdict == NOT_RUN else f"SLO {verdict}"
    if best is None:
        return f"{promise}: no point of the sweep is feasible"
    rate = operating_rate(found.points)
    at = f", open loop {rate.rate_per_s:.3g} req/s" if rate and rate.rate_per_s else ""
    return (
        f"{promise}: operating point {best.concurrency} streams, "
        f"{best.output_tokens_per_s:,.1f} tokens/s, {best.requests_per_s:.3g} req/s{at}"
    )


def _row(each: Point) -> tuple[str, ...]:
    at = (
        f"{each.concurrency} streams"
        if each.concurrency
        else f"{each.loop} {each.rate_per_s:.3g}/s"
    )
    slo = {True: PASS, False: FAIL, None: "-"}[each.keeps_slo]
    return (
        at,
        f"{each.output_tokens_per_s:,.1f}",
        f"{each.requests_per_s:.3g}",
        f"{each.goodput_requests_per_s:.3g}",
        *(_spread(spread) for spread in (each.ttft, each.tpot, each.itl, each.e2e)),
        str(each.num_rejected),
        str(each.num_errors),
        slo,
    )


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{spread.p50_ms:,.0f}/{spread.p90_ms:,.0f}/{spread.p99_ms:,.0f}"
