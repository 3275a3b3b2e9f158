"""The report's charts: loss and GPU use over a run, and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from cost.report.charts import Axis, Mark, Scale, Series, line_chart
from cost.report.layout import short

_SMOOTHING = 0.6
"""Weight of the past in the moving average: about two and a half steps."""


def loss_curve(
    points: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]] = ()
) -> str:
    """Loss per train step with its moving average, and that of held-out rows; needs two points."""
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(points) < 2:
        return ""
    held_out = [(step, loss) for step, loss in held_out if math.isfinite(loss)]
    dots = tuple(Mark(x=x, y=y) for x, y in exact(points))
    steps = points[-1][0] - points[0][0] + 1
    return line_chart(
        "loss",
        title="Loss by train step",
        description=f"Loss from {points[0][1]:.3f} to {points[-1][1]:.3f} over {steps} steps",
        x=Axis(label="train step", scale=Scale.LINEAR, text=short),
        y=Axis(label="loss", scale=Scale.LINEAR, text=short),
        series=[
            Series(name="moving average", points=exact(smooth(points)), style=0),
            Series(name="each step", points=(), style=1, marks=dots),
            *([Series(name="held-out rows", points=exact(held_out), style=2)] if held_out else []),
        ],
    )


def busy_curve(moments: Sequence[tuple[float, float, float | None]]) -> str:
    """Utilisation and memory in use by minute, in percent; needs two moments."""
    if len(moments) < 2:
        return ""
    busy = [(minute, percent) for minute, percent, _ in moments]
    used = [(minute, memory) for minute, _, memory in moments if memory is not None]
    mean = math.fsum(percent for _, percent in busy) / len(busy)
    minutes = max(minute for minute, _ in busy)
    return line_chart(
        "busy",
        title="GPU utilisation over the run",
        description=f"GPU utilisation over {minutes:.0f} minutes, {mean:.1f} percent in the mean",
        x=Axis(label="minute of the job", scale=Scale.LINEAR, text=short),
        y=Axis(label="percent", scale=Scale.LINEAR, text=short, reach=Decimal(0)),
        series=[
            Series(name="mean utilisation of all GPUs", points=exact(busy), style=0),
            Series(name="memory in use on the least used GPU", points=exact(used), style=1, dash=1),
        ],
    )


def exact(points: Sequence[tuple[float, float]]) -> tuple[tuple[Decimal, Decimal], ...]:
    """The points as the decimals that line_chart draws."""
    return tuple((Decimal(str(x)), Decimal(str(y))) for x, y in points)


def smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential moving average, without the pull towards zero at the start."""
    total = weight = 0.0
    result: list[tuple[int, float]] = []
    for step, loss in points:
        total = _SMOOTHING * total + (1 - _SMOOTHING) * loss
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        result.append((step, total / weight))
    return result


def bar_width(value: float, largest: float) -> float:
    """Width of a bar in percent of its cell; a value that is there is always seen."""
    if largest <= 0 or value <= 0:
        return 0.0
    return max(1.0, round(100 * value / largest, 1))
