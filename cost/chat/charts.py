"""Charts of a chat's cost and of a load test's curve as inline SVG, and the curve's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from cost.chat.break_even import ApiCost
from cost.chat.speeds import HOURS_PER_DAY, ChatCost, View
from cost.chat.unit_costs import UnitCosts, percent
from cost.report.charts import Axis, Mark, Scale, Series, line_chart, spread
from cost.report.layout import Table, short, small_usd_text
from cost.run_record import LoadCurve, LoadPoint

_NUM_POINTS: Final = 41
_BEYOND: Final = Decimal(3)
"""How far the throughput axis goes beyond the slowest and the fastest row, as a factor."""
_LEAST_LOAD: Final = Decimal("0.05")


def chat_charts(units: UnitCosts, apis: Sequence[ApiCost] = ()) -> tuple[str, ...]:
    """Three charts as inline SVG; none when no speed is known or nodes cost nothing."""
    rows = units.known_chats
    # What costs nothing has no place on an axis of powers of ten.
    if not (rows and units.hourly.cluster_low_usd):
        return ()
    return (
        _against_throughput(units, rows),
        _against_utilisation(units, rows),
        _against_chats(units, rows, apis),
    )


def _against_throughput(units: UnitCosts, rows: Sequence[ChatCost]) -> str:
    speeds = [row.speed.output_tokens_per_s for row in rows]
    places = spread(min(speeds) / _BEYOND, max(speeds) * _BEYOND, _NUM_POINTS)
    costs = "; ".join(f"{row.speed.scenario} {small_usd_text(row.cluster_low_usd)}" for row in rows)
    prefills = list(dict.fromkeys(row.speed.prefill_tokens_per_s for row in rows))
    series: list[Series] = []
    for style, prefill in enumerate(prefills):
        of_prefill = [row for row in rows if row.speed.prefill_tokens_per_s == prefill]
        first = of_prefill[0]
        curve = [
            replace(first, speed=replace(first.speed, output_tokens_per_s=place))
            for place in places
        ]
        suffix = f", reads {short(prefill)} tokens/s" if prefill is not None else ""
        for dash, (view, _) in enumerate(_views(units)):
            series.append(
                Series(
                    name=f"{view}{suffix}",
                    points=tuple(
                        (place, usd)
                        for place, cost in zip(places, curve, strict=True)
                        if (usd := _seen(cost, view)) is not None
                    ),
                    style=style,
                    dash=dash,
                    marks=tuple(
                        Mark(
                            x=row.speed.output_tokens_per_s,
                            y=usd,
                            name="" if dash else row.speed.scenario,
                        )
                        for row in of_prefill
                        if (usd := _seen(row, view)) is not None
                    ),
                )
            )
    return line_chart(
        f"{units.spec.name}-chat-throughput",
        title="Cost per chat against throughput",
        description=f"US dollars a chat for the whole cluster: {costs}. A dot is a scenario.",
        x=Axis(label="output tokens/s of one serving node", scale=Scale.LOG, text=_count),
        y=_USD,
        series=series,
    )


def _against_utilisation(units: UnitCosts, rows: Sequence[ChatCost]) -> str:
    places = spread(_LEAST_LOAD, Decimal(1), _NUM_POINTS)
    series: list[Series] = []
    for style, row in enumerate(rows):
        for dash, (view, usd_per_hour) in enumerate(_views(units)):
            full = usd_per_hour * HOURS_PER_DAY / row.chats_per_day
            now = row.utilisation
            series.append(
                Series(
                    name=f"{row.speed.scenario}, {view}",
                    points=tuple((place, full / place) for place in places),
                    style=style,
                    dash=dash,
                    marks=(Mark(x=now, y=full / now),) if _LEAST_LOAD <= now <= 1 else (),
                )
            )
    return line_chart(
        f"{units.spec.name}-chat-utilisation",
        title="Cost per chat against utilisation",
        description="Nodes cost the same idle or busy: half the load doubles the cost of a chat. "
        "A dot is the declared demand, or full load.",
        x=Axis(label="utilisation of the serving nodes", scale=Scale.LINEAR, text=percent),
        y=_USD,
        series=series,
    )


def _against_chats(units: UnitCosts, rows: Sequence[ChatCost], apis: Sequence[ApiCost]) -> str:
    rooms = [row.chats_per_day for row in rows]
    demand = units.spec.chat.chats_per_day
    low, high = min((*rooms, *(() if demand is None else (Decimal(demand),)))) / 10, max(rooms)
    reach, cluster = high * 10, units.hourly.cluster_low_usd
    places = spread(low, high, _NUM_POINTS)

    def usd(usd_per_hour: Decimal, chats: Decimal) -> Decimal:
        return usd_per_hour * HOURS_PER_DAY / chats

    marks = [
        Mark(x=room, y=usd(cluster, room), name=f"room of {row.speed.scenario}")
        for room, row in zip(rooms, rows, strict=True)
    ]
    if demand is not None and demand <= high:
        chats = Decimal(demand)
        marks.append(Mark(x=chats, y=usd(cluster, chats), name=f"declared: {demand:,} a day"))
    series = [
        Series(
            name=view,
            points=tuple((place, usd(usd_per_hour, place)) for place in places),
            style=0,
            dash=dash,
            marks=() if dash else tuple(marks),
        )
        for dash, (view, usd_per_hour) in enumerate(_views(units))
    ]
    series += [
        Series(
            name=f"API {api.model}", points=((low, api.usd), (reach, api.usd)), style=style, dash=2
        )
        for style, api in enumerate(apis, start=1)
        if api.usd
    ]
    crossing = " Where a line meets an API's, self-hosting starts to be cheaper." if apis else ""
    return line_chart(
        f"{units.spec.name}-chat-demand",
        title="Cost per chat against chats a day",
        description=f"A line ends where the serving nodes have no more room.{crossing}",
        x=Axis(label="chats a day", scale=Scale.LOG, text=_count, reach=reach),
        y=_USD,
        series=series,
    )


def _views(units: UnitCosts) -> list[tuple[View, Decimal]]:
    """Whose nodes a line is of, and their US dollars an hour; the first is drawn whole."""
    return [(view, low) for view, low, _ in units.hourly.views if low]


def _seen(cost: ChatCost, view: View) -> Decimal | None:
    return cost.cluster_low_usd if view is View.CLUSTER else cost.serving_usd


def _count(value: Decimal) -> str:
    return f"{value.normalize():,f}"


_USD: Final = Axis(
    label="US dollars a chat", scale=Scale.LOG, text=lambda value: f"${_count(value)}"
)


_VERDICTS = {True: "PASS", False: "FAIL", None: "-"}


def load_table(curve: LoadCurve, title: str) -> Table:
    """Every point of the test; those that break the SLO are bad rows."""
    best = curve.operating_point
    return Table(
        title=title,
        headings=(
            *("Load", "SLO", "Tokens/s", "Requests/s", "Goodput/s"),
            *("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99"),
        ),
        rows=tuple(_row(each, best) for each in curve.curve),
        num_text_columns=2,
        bad_rows=frozenset(
            index for index, each in enumerate(curve.curve) if each.keeps_slo is False
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
    points = tuple((_streams(each), each.output_tokens_per_s) for each in sweep)
    marks = [
        Mark(x=x, y=y, name="operating point" if each == best else "")
        for (x, y), each in zip(points, sweep, strict=True)
    ]
    kept, broken = (
        tuple(mark for mark, each in zip(marks, sweep, strict=True) if each.is_feasible is state)
        for state in (True, False)
    )
    series = [Series(name="measured", points=points, style=0, marks=kept)]
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
        ("TTFT p99", lambda each: each.ttft.p99_ms, curve.slo.ttft_ms),
        ("TPOT p99", lambda each: each.tpot.p99_ms, curve.slo.tpot_ms),
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


def _streams(each: LoadPoint) -> Decimal:
    return Decimal(each.concurrency or 0)


def _row(each: LoadPoint, best: LoadPoint | None) -> tuple[str, ...]:
    streams = each.concurrency
    at = f"{streams} stream{'' if streams == 1 else 's'}"
    at = f"{short(each.rate_per_s or Decimal(0))} requests/s" if streams is None else at
    return (
        f"{at}, operating point" if each == best else at,
        _VERDICTS[each.keeps_slo],
        short(each.output_tokens_per_s),
        short(each.requests_per_s),
        short(each.goodput_requests_per_s),
        *map(_ms, (each.ttft.p50_ms, each.ttft.p99_ms, each.tpot.p50_ms, each.tpot.p99_ms)),
    )


def _ms(value: Decimal | None) -> str:
    return "-" if value is None else f"{short(value)} ms"
