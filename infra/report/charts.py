"""The charts of the report as inline SVG: the loss curve and before/after bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from infra.report import svg

_WIDTH, _HEIGHT = 960.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 16.0, 16.0, 44.0
_SMOOTHING = 0.6
"""Weight of the past in the moving average: about two and a half steps."""


def loss_curve(points: Sequence[tuple[int, float]]) -> str:
    """Loss per train step with its moving average; needs two points."""
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(points) < 2:
        return ""
    first, last = points[0][0], points[-1][0]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    ticks = nice_ticks(low, high, 5)
    bottom, top = ticks[0], ticks[-1]

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(loss: float) -> float:
        return _TOP + (top - loss) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for tick in ticks:
        parts += [
            svg.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid"),
            svg.text(_LEFT - 10, y(tick) + 4, f"{tick:g}", "tick", "end"),
        ]
    for tick in nice_ticks(first, last, 8):
        if first <= tick <= last and tick == int(tick):
            parts.append(svg.text(x(tick), _HEIGHT - _BOTTOM + 20, f"{tick:g}", "tick", "middle"))
    axis = "train step"
    parts.append(svg.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, axis, "tick", "middle"))
    parts.append(svg.path([(x(step), y(loss)) for step, loss in points], "curve-raw"))
    parts.append(svg.path([(x(step), y(loss)) for step, loss in smooth(points)], "curve"))
    for step, loss in points:
        title = f"step {step}: {loss:.4f}"
        parts.append(svg.circle(x(step), y(loss), 2.5, "dot", title))
    label = f"Loss from {points[0][1]:.3f} to {points[-1][1]:.3f} over {last - first + 1} steps"
    return svg.document(_WIDTH, _HEIGHT, label, parts)


def busy_curve(moments: Sequence[tuple[float, float, float | None]]) -> str:
    """Utilisation (heavy) and memory in use (thin) by minute, in percent; needs two moments."""
    if len(moments) < 2:
        return ""
    last = max(minute for minute, _, _ in moments) or 1.0

    def x(minute: float) -> float:
        return _LEFT + minute / last * (_WIDTH - _LEFT - _RIGHT)

    def y(percent: float) -> float:
        return _TOP + (100 - percent) / 100 * (_HEIGHT - _TOP - _BOTTOM)

    parts: list[str] = []
    for tick in (0, 20, 40, 60, 80, 100):
        parts += [
            svg.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid"),
            svg.text(_LEFT - 10, y(tick) + 4, f"{tick}", "tick", "end"),
        ]
    for tick in nice_ticks(0, last, 8):
        if tick <= last:
            parts.append(svg.text(x(tick), _HEIGHT - _BOTTOM + 20, f"{tick:g}", "tick", "middle"))
    axis = "minute of the job; percent"
    parts.append(svg.text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 4, axis, "tick", "middle"))
    used = [(x(minute), y(memory)) for minute, _, memory in moments if memory is not None]
    if len(used) > 1:
        parts.append(svg.path(used, "curve-raw"))
    parts.append(svg.path([(x(minute), y(busy)) for minute, busy, _ in moments], "curve"))
    mean = math.fsum(busy for _, busy, _ in moments) / len(moments)
    label = f"GPU utilisation over {last:.0f} minutes, {mean:.1f} percent in the mean"
    return svg.document(_WIDTH, _HEIGHT, label, parts)


def smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential moving average, without the pull towards zero at the start."""
    total = weight = 0.0
    result = []
    for step, loss in points:
        total = _SMOOTHING * total + (1 - _SMOOTHING) * loss
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        result.append((step, total / weight))
    return result


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Round values that cover low..high, about `count` of them."""
    span = max(high - low, abs(high) * 1e-6, 1e-9)
    raw = span / count
    magnitude = 10 ** math.floor(math.log10(raw))
    factors = (1, 2, 2.5, 5, 10)
    step = next((f * magnitude for f in factors if f * magnitude >= raw), 10 * magnitude)
    start, end = math.floor(low / step), math.ceil(high / step)
    if start == end:
        end += 1
    return [round(index * step, 10) for index in range(start, end + 1)]


def bar_width(value: float, largest: float) -> float:
    """Width of a bar in percent of its cell; a value that is there is always seen."""
    if largest <= 0 or value <= 0:
        return 0.0
    return max(1.0, round(100 * value / largest, 1))
