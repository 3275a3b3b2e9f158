"""Numbers of a load test: percentiles as numpy gives, rates of the window, speeds for cost."""

from __future__ import annotations

import statistics
from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nightly import law
from workloads.load.client import REJECTED, TIMEOUT, Sample
from workloads.load.run import (
    Loop,
    Point,
    Spread,
    batch_speeds,
    keeps,
    operating_point,
    operating_rate,
    percentile,
    point,
    record_metrics,
    single_speeds,
)
from workloads.recipes.load import Slo

SETTINGS = law(200)
VALUES = st.lists(st.floats(0, 1e6), min_size=2, max_size=300)


@SETTINGS
@given(values=VALUES, share=st.floats(0, 1))
def test_percentiles_are_those_of_numpy_and_of_statistics(values: list[float], share: float):
    ordered = sorted(values)
    assert percentile(ordered, share) == pytest.approx(np.quantile(values, share), rel=1e-9)
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert percentile(ordered, 0.99) == pytest.approx(cuts[98], rel=1e-9)


def answer(start_s: float, first_s: float, gap_s: float, tokens: int, **changes: object) -> Sample:
    """An answer whose tokens come one an event."""
    times = array("d", [start_s + first_s + place * gap_s for place in range(tokens)])
    sample = Sample(
        intended_s=start_s,
        is_measured=True,
        sent_s=start_s,
        ended_s=times[-1],
        times_s=times,
        prompt_tokens=100,
        output_tokens=tokens,
    )
    return replace(sample, **changes)  # pyright: ignore[reportArgumentType]


def made(samples: list[Sample], window: tuple[float, float], slo: Slo | None = None) -> Point:
    return point(Loop(samples=samples, window_s=window), slo or Slo(), kind="closed", concurrency=1)


def test_each_latency_is_what_its_definition_says():
    """Two answers of five tokens: first after 1 s, then one every 0.1 s."""
    got = made([answer(0, 1, 0.1, 5), answer(2, 1, 0.1, 5)], (0, 3.4))
    assert got.ttft is not None
    assert got.tpot is not None
    assert got.itl is not None
    assert got.e2e is not None
    assert got.ttft.p50_ms == pytest.approx(1000)
    assert got.tpot.p99_ms == pytest.approx(100)
    assert got.itl.p90_ms == pytest.approx(100)
    assert got.e2e.mean_ms == pytest.approx(1400)
    assert got.output_tokens_per_s == pytest.approx(10 / 3.4)
    assert got.requests_per_s == pytest.approx(2 / 3.4)


def test_several_tokens_an_event_lengthen_itl_and_not_tpot():
    sample = answer(0, 1, 0.4, 5, output_tokens=17)
    got = made([sample], (0, 2.6))
    assert got.itl is not None
    assert got.tpot is not None
    assert got.itl.p50_ms == pytest.approx(400)
    assert got.tpot.p50_ms == pytest.approx(100)
    assert got.output_tokens_per_s == pytest.approx(17 / 2.6)


def test_only_tokens_within_the_window_are_throughput_whoever_they_belong_to():
    """The warm-up's tokens load the server too; what comes after the window is its end."""
    warm = answer(0, 0.5, 1, 3, is_measured=False)
    got = made([warm, answer(1, 0.25, 1, 3)], (1, 3))
    assert got.num_requests == 1
    assert got.output_tokens_per_s == pytest.approx((2 + 2) / 2)


def test_refusals_timeouts_and_errors_are_three_things():
    bad = answer(0, 1, 0.1, 2)
    samples = [
        answer(0, 1, 0.1, 5),
        replace(bad, outcome=REJECTED, retry_after_s=4.0),
        replace(bad, outcome=TIMEOUT, ended_s=60.0),
        replace(bad, outcome="disconnected"),
    ]
    got = made(samples, (0, 2), Slo(ttft_ms=2000))
    assert (got.num_requests, got.num_ok, got.num_rejected, got.num_errors) == (4, 1, 1, 2)
    assert got.errors == {"disconnected": 1, "timeout": 1}
    assert got.median_retry_after_s == 4.0
    assert got.error_share == 0.5
    assert got.good_share == 0.25
    assert got.keeps_slo is False
    assert got.e2e is not None
    assert got.e2e.p99_ms > 50_000, "the request that was given up counts with its time"
    assert got.ttft is not None
    assert got.ttft.p99_ms == pytest.approx(1000)


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        (Slo(ttft_ms=1001), True),
        (Slo(ttft_ms=999), False),
        (Slo(tpot_ms=101), True),
        (Slo(tpot_ms=99), False),
        (Slo(e2e_s=1.41), True),
        (Slo(e2e_s=1.39), False),
        (Slo(ttft_ms=1001, e2e_s=1.39), False),
    ],
)
def test_a_request_is_good_when_it_keeps_every_bound(slo: Slo, expected: bool):
    assert keeps(answer(0, 1, 0.1, 5), slo) is expected


def test_goodput_counts_good_requests_and_a_promise_needs_their_share():
    samples = [answer(0, 1, 0.1, 5), answer(0, 3, 0.1, 5)]
    got = made(samples, (0, 4), Slo(ttft_ms=2000, share=0.5))
    assert got.goodput_requests_per_s == pytest.approx(got.requests_per_s / 2)
    assert got.keeps_slo is True
    assert made(samples, (0, 4), Slo(ttft_ms=2000, share=0.51)).keeps_slo is False
    assert made(samples, (0, 4)).keeps_slo is None


def at(streams: int, tokens_per_s: float, ttft_ms: float, tpot_ms: float, **changes: object):
    """A point of the sweep: 1,000 prompt tokens, 100 written."""
    base = made([answer(0, 1, 0.1, 5)], (0, 2))
    same = dict.fromkeys(("p50_ms", "p90_ms", "p99_ms"), 0.0)
    point_ = replace(
        base,
        concurrency=streams,
        output_tokens_per_s=tokens_per_s,
        mean_prompt_tokens=1000.0,
        mean_uncached_tokens=1000.0,
        mean_output_tokens=100.0,
        ttft=Spread(mean_ms=ttft_ms, **same),
        tpot=Spread(mean_ms=tpot_ms, **same),
        keeps_slo=True,
    )
    return replace(point_, **changes)  # pyright: ignore[reportArgumentType]


def busy_s(speeds, prompt: float, output: float) -> float:
    """cost/chat/speeds.py: seconds that a chat keeps a node busy."""
    return output / speeds.output_tokens_per_s + prompt / speeds.prefill_tokens_per_s


def test_one_stream_reads_in_what_writing_leaves_of_its_time():
    """100 tokens in 3 s, 20 ms each: 2 s written, 1 s for 1,000 tokens read."""
    speeds = single_speeds(at(1, 100 / 3, 1020, 20))
    assert speeds is not None
    assert speeds.output_tokens_per_s == pytest.approx(50)
    assert speeds.prefill_tokens_per_s == pytest.approx(1000)


def test_reading_that_cannot_be_told_from_writing_is_left_out():
    speeds = single_speeds(at(1, 50, 20, 21))
    assert speeds is not None
    assert speeds.output_tokens_per_s == 50
    assert speeds.prefill_tokens_per_s is None


@SETTINGS
@given(
    streams=st.integers(2, 256),
    read_gain=st.floats(0.5, 20),
    write_gain=st.floats(1, 256),
)
def test_the_speeds_of_a_batch_give_back_the_throughput_that_was_measured(
    streams: int, read_gain: float, write_gain: float
):
    one = at(1, 100 / 3, 1020, 20)
    single = single_speeds(one)
    assert single is not None
    answer_s = 2 / min(write_gain, streams) + 1 / min(read_gain, streams)
    many = at(streams, 100 / answer_s, 0, 0)
    speeds = batch_speeds(single, many)
    assert busy_s(speeds, 1000, 100) == pytest.approx(answer_s, rel=1e-6)
    assert speeds.output_tokens_per_s <= streams * single.output_tokens_per_s * (1 + 1e-9)


def test_the_operating_point_is_the_fastest_that_keeps_the_promise():
    points = [
        at(1, 33, 1020, 20),
        at(4, 100, 1500, 25),
        at(8, 120, 9000, 60, keeps_slo=False),
        at(8, 130, 0, 0, concurrency=None, loop="poisson", rate_per_s=1.0),
        at(8, 140, 0, 0, concurrency=None, loop="poisson", rate_per_s=2.0, keeps_slo=False),
    ]
    best, rate = operating_point(points), operating_rate(points)
    assert best is points[1]
    assert rate is points[3]
    metrics = record_metrics(points)
    assert metrics["batch_size"] == metrics["operating_concurrency"] == 4
    assert metrics["open_loop_requests_per_s"] == 1.0


def test_a_server_that_never_keeps_the_promise_gives_no_batch_to_price():
    points = [at(1, 33, 1020, 20, keeps_slo=False), at(4, 100, 1500, 25, keeps_slo=False)]
    metrics = record_metrics(points)
    assert operating_point(points) is None
    assert "batch_size" not in metrics
    assert metrics["output_tokens_per_s"] == pytest.approx(50)


def test_without_a_promise_a_point_with_refusals_is_no_operating_point():
    points = [at(1, 33, 1020, 20, keeps_slo=None), at(4, 100, 0, 0, keeps_slo=None, num_ok=0)]
    assert operating_point(points) is points[0]
    assert record_metrics([]) == {}
