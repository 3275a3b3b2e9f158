"""From samples to numbers: percentiles, rates, goodput: point(loop, slo). No clocks here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from workloads.load.config import Slo
from workloads.load.loops import Loop
from workloads.load.sample import REJECTED, TIMEOUT, Sample


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

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain values."""
        return asdict(self)


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
    return Spread(
        p50_ms=p50, p90_ms=p90, p99_ms=p99, mean_ms=1000 * math.fsum(ordered) / len(ordered)
    )


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
    return math.fsum(values) / len(values) if values else None
