"""Lays a load test's curve out: load_table(curve, title) and load_charts(curve).

Owns its columns, lines and marks. Which point is the operating point is load_curve.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from cost.charts import Axis, Mark, Scale, Series, line_chart
from cost.layout import Table
from cost.load_curve import LoadCurve, LoadPoint
from cost.rounding import short

_VERDICTS = {True: "PASS", False: "FAIL", None: "-"}


def load_table(curve: LoadCurve, title: str) -> Table:
    """Every point of the test; those that break the SLO are bad rows."""
    best = curve.operating_point
    return Table(
        title=title,
        headings=(
            "Load",
            "SLO",
            "Tokens/s",
            "Requests/s",
            "Goodput/s",
            "TTFT p50",
            "TTFT p99",
            "TPOT p50",
            "TPOT p99",
        ),
        rows=tuple(_row(each, best) for each in curve.points),
        num_text_columns=2,
        bad_rows=frozenset(
            index for index, each in enumerate(curve.points) if each.keeps_slo is False
        ),
    )


def load_charts(curve: LoadCurve) -> tuple[str, ...]:
    """Throughput, then latencies, against streams, as inline SVG; none of fewer than two loads."""
    sweep = [each for each in curve.sweep if each.output_tokens_per_s > 0]
    if len(sweep) < 2:
        return ()
    return tuple(filter(None, (_throughput(curve, sweep), _latencies(curve, sweep))))


def _throughput(curve: LoadCurve, sweep: Sequence[LoadPoint]) -> str:
    best = curve.operating_point
    kept = tuple(
        Mark(
            x=_streams(each),
            y=each.output_tokens_per_s,
            name="operating point" if each == best else "",
        )
        for each in sweep
        if each.is_feasible
    )
    broken = tuple(
        Mark(x=_streams(each), y=each.output_tokens_per_s) for each in sweep if not each.is_feasible
    )
    series = [Series(name="measured", points=_points(sweep), style=0, marks=kept)]
    if broken:
        series.append(Series(name="not feasible", points=(), style=1, marks=broken))
    return line_chart(
        "load-throughput",
        title="Output tokens a second against streams",
        description="The load test's closed loops; the operating point is the highest that keeps "
        f"{curve.slo}.",
        x=_across(sweep),
        y=Axis(label="tokens/s", scale=Scale.LINEAR, text=short),
        series=series,
    )


def _latencies(curve: LoadCurve, sweep: Sequence[LoadPoint]) -> str:
    series: list[Series] = []
    ends = (_streams(sweep[0]), _streams(sweep[-1]))
    measures: tuple[tuple[str, Callable[[LoadPoint], Decimal | None], Decimal | None], ...] = (
        ("TTFT p99", lambda each: each.p99_ttft_ms, curve.slo.ttft_ms),
        ("TPOT p99", lambda each: each.p99_tpot_ms, curve.slo.tpot_ms),
    )
    for style, (name, value_of, bound) in enumerate(measures):
        points = tuple(
            (_streams(each), value)
            for each in sweep
            if (value := value_of(each)) is not None and value > 0
        )
        marks = tuple(Mark(x=x, y=y) for x, y in points)
        series.append(Series(name=name, points=points, style=style, marks=marks))
        if bound is not None and points:
            line = tuple((x, bound) for x in ends)
            series.append(
                Series(name=f"{name} allowed: {short(bound)} ms", points=line, style=style, dash=1)
            )
    if not any(each.points for each in series):
        return ""
    return line_chart(
        "load-latencies",
        title="Milliseconds of 99 in 100 answers against streams",
        description="Time to the first token and for each further one; broken lines are the SLO.",
        x=_across(sweep),
        y=Axis(label="ms", scale=Scale.LOG, text=short),
        series=series,
    )


def _across(sweep: Sequence[LoadPoint]) -> Axis:
    measured = tuple(map(_streams, sweep))
    return Axis(label="streams (closed loop)", scale=Scale.LOG, text=short, ticks=measured)


def _points(sweep: Sequence[LoadPoint]) -> tuple[tuple[Decimal, Decimal], ...]:
    return tuple((_streams(each), each.output_tokens_per_s) for each in sweep)


def _streams(each: LoadPoint) -> Decimal:
    return Decimal(each.concurrency or 0)


def _row(each: LoadPoint, best: LoadPoint | None) -> tuple[str, ...]:
    at = f"{short(each.rate_per_s or Decimal(0))} requests/s"
    if each.concurrency is not None:
        at = "1 stream" if each.concurrency == 1 else f"{each.concurrency} streams"
    return (
        f"{at}, operating point" if each == best else at,
        _VERDICTS[each.keeps_slo],
        short(each.output_tokens_per_s),
        short(each.requests_per_s),
        short(each.goodput_requests_per_s),
        *map(_ms, (each.p50_ttft_ms, each.p99_ttft_ms, each.p50_tpot_ms, each.p99_tpot_ms)),
    )


def _ms(value: Decimal | None) -> str:
    return "-" if value is None else f"{short(value)} ms"
