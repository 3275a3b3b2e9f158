"""Closed and open loops of requests, and from their samples to numbers: point(loop, slo)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from workloads.common.exit_codes import WorkloadError
from workloads.load.client import REJECTED, TIMEOUT, ChatClient, Sample
from workloads.load.prompts import Arrival, Message
from workloads.recipes.load import Slo

_GONE_AFTER = 5
"""Requests in a row that could not even connect: the server is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What one request asks."""

    messages: list[Message]
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """What one loop showed."""

    samples: list[Sample]
    """All, those of the warm-up too."""
    window_s: tuple[float, float]
    """From when to when the load was steady: rates are counted in it."""


class _Watch:
    """Ends a run whose server is gone."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._in_a_row = 0
        self._answered = 0

    def see(self, sample: Sample) -> None:
        if sample.outcome != "connect":
            self._in_a_row = 0
            self._answered += sample.is_ok
            return
        self._in_a_row += 1
        if self._in_a_row >= _GONE_AFTER:
            raise WorkloadError(
                f"{self._url}: {_GONE_AFTER} requests in a row could not connect after "
                f"{self._answered} answers of this run ({sample.detail}); the server is gone: see "
                "its log"
            )


async def closed_loop(
    client: ChatClient, chats: Sequence[Chat], streams: int, num_warm_up: int
) -> Loop:
    """Keep `streams` requests underway until the chats are used up.

    The window is that in which all streams worked: from the first measured request until one of
    them finds no more. A refused stream waits as long as the server asked for.
    """
    watch = _Watch(client.url)
    samples: list[Sample] = []
    began_s: list[float] = []
    ended_s: list[float] = []
    left = iter(enumerate(chats))

    async def stream() -> None:
        for number, chat in left:
            is_measured = number >= num_warm_up
            if is_measured and not began_s:
                began_s.append(time.perf_counter())
            sample = await client.ask(chat.messages, chat.output_tokens, is_measured=is_measured)
            samples.append(sample)
            watch.see(sample)
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
    watch = _Watch(client.url)
    samples: list[Sample] = []
    room = asyncio.Semaphore(max_in_flight)
    started_s = time.perf_counter()

    async def one(number: int, chat: Chat, intended_s: float) -> None:
        async with room:
            sample = await client.ask(
                chat.messages,
                chat.output_tokens,
                intended_s=intended_s,
                is_measured=number >= num_warm_up,
            )
        samples.append(sample)
        watch.see(sample)

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
