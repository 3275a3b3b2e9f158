"""The plots of a certificate, drawn by cost/charts.py: bandwidth by size, scaling, soak rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from cost.charts import Axis, Mark, Scale, Series, line_chart
from cost.rounding import short
from infra.report.charts import exact

Points = Sequence[tuple[float, float]]


def bandwidth(rows: Sequence[Mapping[str, Any]]) -> str:
    """busbw in GB/s by message size, a line for each collective and scope; needs two sizes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        where = row["nodes"][0] if row["scope"] == "node" else f"{len(row['nodes'])} nodes"
        by = "" if row["source"] == "torch" else f", {row['source']}"
        key = f"{row['op']}, {where}{by}"
        lines.setdefault(key, []).append((row["bytes"] / 1e6, float(row["busbw_gb_per_s"])))
    lines = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    return _plot("Bandwidth of collectives", lines, x="message, MB", y="busbw, GB/s")


def scaling(points: Sequence[Mapping[str, Any]]) -> str:
    """Tokens a second by ranks, with the line of the first point times the ranks."""
    found = sorted((float(each["ranks"]), float(each["tokens_per_s"])) for each in points)
    if len(found) < 2:
        return ""
    first_ranks, first_rate = found[0]
    ideal = [(ranks, first_rate / first_ranks * ranks) for ranks, _ in found]
    lines = {"measured": found, "ideal": ideal}
    return _plot("Scaling of training", lines, x="ranks", y="tokens/s")


def rounds(round_s: Sequence[float]) -> str:
    """Seconds of each round of the soak."""
    points = [(float(index + 1), seconds) for index, seconds in enumerate(round_s)]
    return _plot("Soak", {"time of a round": points}, x="round", y="seconds", log=False)


def compared(title: str, lines: Mapping[str, Points]) -> str:
    """Tokens a second by nodes of several runs."""
    drawn = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    return _plot(title, drawn, x="nodes", y="tokens/s")


def _plot(title: str, lines: Mapping[str, Points], *, x: str, y: str, log: bool = True) -> str:
    """One chart from zero up; empty where no line has two places."""
    drawn = {name: exact(points) for name, points in lines.items()}
    places = sorted({place for points in drawn.values() for place, _ in points})
    if len(places) < 2:
        return ""
    scale = Scale.LOG if log else Scale.LINEAR
    return line_chart(
        f"plot-{title.casefold().replace(' ', '-')}",
        title=title,
        description=f"{y} by {x}",
        x=Axis(label=x, scale=scale, text=short, ticks=tuple(places) if log else ()),
        y=Axis(label=y, scale=Scale.LINEAR, text=short, reach=Decimal(0)),
        series=[
            Series(
                name=name,
                points=points,
                style=style,
                dash=style // 6,
                marks=tuple(Mark(x=place, y=value) for place, value in points),
            )
            for style, (name, points) in enumerate(drawn.items())
        ],
    )
