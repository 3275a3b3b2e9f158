"""The plots of a certificate as inline SVG: bandwidth by size, scaling, rounds of the soak."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from infra.report import svg
from infra.report.charts import nice_ticks

Points = Sequence[tuple[float, float]]
_WIDTH, _HEIGHT = 960.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 72.0, 150.0, 16.0, 52.0
_SERIES: Final = 6
"""Line styles of the page: s0 to s5."""


def bandwidth(rows: Sequence[Mapping[str, Any]]) -> str:
    """busbw in GB/s by message size, a line for each collective and scope; needs two sizes."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        where = row["nodes"][0] if row["scope"] == "node" else f"{len(row['nodes'])} nodes"
        by = "" if row["source"] == "torch" else f", {row['source']}"
        key = f"{row['op']}, {where}{by}"
        lines.setdefault(key, []).append((float(row["bytes"]), float(row["busbw_gb_per_s"])))
    lines = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    if not lines:
        return ""
    return _plot(
        lines, "busbw in GB/s by message size", log_x=True, x_text=lambda x: f"{x / 1e6:g} MB"
    )


def scaling(points: Sequence[Mapping[str, Any]]) -> str:
    """Tokens a second by ranks, with the line of the first point times the ranks."""
    found = sorted((float(each["ranks"]), float(each["tokens_per_s"])) for each in points)
    if len(found) < 2:
        return ""
    first_ranks, first_rate = found[0]
    ideal = [(ranks, first_rate / first_ranks * ranks) for ranks, _ in found]
    return _plot(
        {"measured": found, "ideal": ideal},
        "tokens a second by ranks",
        log_x=True,
        x_text=lambda x: f"{x:g}",
    )


def rounds(round_s: Sequence[float]) -> str:
    """Seconds of each round of the soak."""
    points = [(float(index + 1), seconds) for index, seconds in enumerate(round_s)]
    if len(points) < 2:
        return ""
    return _plot({"round": points}, "seconds of each round", x_text=lambda x: f"{x:g}")


def compared(lines: Mapping[str, Points]) -> str:
    """Tokens a second by nodes of several runs."""
    drawn = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    if not drawn:
        return ""
    return _plot(drawn, "tokens a second by nodes", log_x=True, x_text=lambda x: f"{x:g}")


def _plot(
    lines: Mapping[str, Points],
    label: str,
    *,
    x_text: Callable[[float], str],
    log_x: bool = False,
) -> str:
    every = [point for points in lines.values() for point in points]
    scale = math.log2 if log_x else float
    first, last = scale(min(x for x, _ in every)), scale(max(x for x, _ in every))
    ticks = nice_ticks(0, max(y for _, y in every), 5)

    def place_x(value: float) -> float:
        return _LEFT + (scale(value) - first) / ((last - first) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def place_y(value: float) -> float:
        return _TOP + (1 - value / ticks[-1]) * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    for tick in ticks:
        parts += [
            svg.line(_LEFT, place_y(tick), _WIDTH - _RIGHT, place_y(tick), "grid"),
            svg.text(_LEFT - 8, place_y(tick) + 4, f"{tick:,.10g}", "tick", "end"),
        ]
    marks = sorted({x for x, _ in every})
    step = max(1, math.ceil(len(marks) / 12))
    for mark in marks[::step]:
        parts.append(svg.text(place_x(mark), _HEIGHT - 34, x_text(mark), "tick", "middle"))
    parts.append(svg.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, label, "tick", "middle"))
    for index, (name, points) in enumerate(lines.items()):
        style = f"s{index % _SERIES}"
        placed = [(place_x(x), place_y(y)) for x, y in points]
        parts.append(svg.path(placed, f"curve {style}"))
        parts += [
            svg.circle(x, y, 3, f"dot {style}", f"{name}: {x_text(value)}, {measured:,.4g}")
            for (x, y), (value, measured) in zip(placed, points, strict=True)
        ]
        parts.append(svg.text(_WIDTH - _RIGHT + 10, _TOP + 14 + 18 * index, name, style))
    return svg.document(_WIDTH, max(_HEIGHT, _TOP + 30 + 18 * len(lines)), label, parts)
