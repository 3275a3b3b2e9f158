"""Line charts as inline SVG: line_chart(key, title, description, x, y, series) -> text.

Self-contained: no script, no style sheet, no request; ink is the page's own (currentColor), lines
differ in colour and dash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from html import escape
from typing import Final

from cost.report.layout import rounded

# Okabe and Ito, "Color Universal Design" (2008): told apart by the colour-blind, on light and dark.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES: Final = ("", "7 4", "2 4", "10 4 2 4")
# Two stand side by side on a desk; on a phone, 330 px wide, a letter still has 9 px.
_WIDTH: Final = 520
_PLOT_HEIGHT: Final = 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 28, 64, 72
_LEGEND_ROW: Final = 22
_LETTER_WIDTH, _LETTER_HEIGHT = Decimal(8), 17
"""About what a letter of the font takes; names are placed by it, not measured."""
_FONT: Final = 'font-family="system-ui, sans-serif" font-size="14" fill="currentColor"'

# A name stays readable where it has to stand on another line.
_HALO: Final = ' style="paint-order: stroke; stroke: var(--card, transparent); stroke-width: 5px"'


class Scale(StrEnum):
    """How values become places."""

    LINEAR = "linear"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What an axis shows and how its values are written."""

    label: str
    scale: Scale
    text: Callable[[Decimal], str]
    reach: Decimal | None = None
    """Value that the axis goes on to beyond its lines."""
    ticks: tuple[Decimal, ...] = ()
    """The measured values, where they stand in for round ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A dot with a name; an empty name is a dot alone."""

    x: Decimal
    y: Decimal
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line; `style` numbers its colour, `dash` how it is broken."""

    name: str
    points: tuple[tuple[Decimal, Decimal], ...]
    style: int
    dash: int = 0
    marks: tuple[Mark, ...] = ()


def line_chart(
    key: str, *, title: str, description: str, x: Axis, y: Axis, series: Sequence[Series]
) -> str:
    """One <svg> element; `key` makes its ids unique on the page. Empty without two points."""
    spots = [
        point
        for line in series
        for point in (*line.points, *((mark.x, mark.y) for mark in line.marks))
    ]
    across, up = [spot[0] for spot in spots], [spot[1] for spot in spots]
    across += [] if x.reach is None else [x.reach]
    up += [] if y.reach is None else [y.reach]
    if len(set(across)) < 2:
        return ""
    x_ticks = x.ticks or ticks(min(across), max(across), x.scale)
    y_ticks = ticks(min(up), max(up), y.scale)
    plot = _Plot(
        x=_place(min(across), max(across), x.scale, _LEFT, _WIDTH - _RIGHT),
        y=_place(
            min(y_ticks[0], min(up)), max(y_ticks[-1], max(up)), y.scale, _TOP + _PLOT_HEIGHT, _TOP
        ),
    )
    parts = [
        *_grid(
            plot, x, y, [tick for tick in x_ticks if min(across) <= tick <= max(across)], y_ticks
        ),
        *(part for line in series for part in _line(plot, line)),
        *(part for line in series for part in _marks(plot, line)),
        *_legend(series),
    ]
    height = _TOP + _PLOT_HEIGHT + _BOTTOM + _LEGEND_ROW * len(series)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-labelledby="{escape(key)}-title {escape(key)}-desc" '
        'style="width: 100%; height: auto">'
        f'<title id="{escape(key)}-title">{escape(title)}</title>'
        f'<desc id="{escape(key)}-desc">{escape(description)}</desc>'
        f'<text x="0" y="16" {_FONT} font-weight="600">{escape(title)}</text>'
        f"{''.join(parts)}</svg>"
    )


def ticks(low: Decimal, high: Decimal, scale: Scale) -> tuple[Decimal, ...]:
    """Round values from at most `low` to at least `high`."""
    return _log_ticks(low, high) if scale is Scale.LOG else _linear_ticks(low, high)


def spread(low: Decimal, high: Decimal, count: int) -> tuple[Decimal, ...]:
    """`count` values from low to high, each the same factor over the one before."""
    first, last = low.ln(), high.ln()
    inner = [(first + (last - first) * step / (count - 1)).exp() for step in range(1, count - 1)]
    return (low, *inner, high)


def _log_ticks(low: Decimal, high: Decimal) -> tuple[Decimal, ...]:
    decades = range(low.adjusted(), high.adjusted() + 2)
    # Two decades have room for the steps between their powers of ten.
    steps = (1, 2, 5) if high.adjusted() - low.adjusted() <= 2 else (1,)
    values = [Decimal(step).scaleb(decade) for decade in decades for step in steps]
    first = max(value for value in values if value <= low)
    last = min(value for value in values if value >= high and value > first)
    return tuple(value for value in values if first <= value <= last)


def _linear_ticks(low: Decimal, high: Decimal) -> tuple[Decimal, ...]:
    raw = (high - low) / 5 or Decimal(1)
    power = Decimal(1).scaleb(raw.adjusted())
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    first = int((low / step).to_integral_value(ROUND_FLOOR))
    last = int((high / step).to_integral_value(ROUND_CEILING))
    return tuple(step * index for index in range(first, max(last, first + 1) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plot:
    x: Callable[[Decimal], Decimal]
    y: Callable[[Decimal], Decimal]


def _place(
    low: Decimal, high: Decimal, scale: Scale, start: int, end: int
) -> Callable[[Decimal], Decimal]:
    """Values low..high -> start..end in the picture's own units."""

    def measure(value: Decimal) -> Decimal:
        return value.log10() if scale is Scale.LOG else value

    first, whole = measure(low), measure(high) - measure(low)

    def place(value: Decimal) -> Decimal:
        share = (measure(value) - first) / whole if whole else Decimal(0)
        return start + share * (end - start)

    return place


def _grid(
    plot: _Plot, x: Axis, y: Axis, x_ticks: Sequence[Decimal], y_ticks: Sequence[Decimal]
) -> list[str]:
    bottom, right = _TOP + _PLOT_HEIGHT, _WIDTH - _RIGHT
    rule = 'stroke="currentColor" stroke-opacity="0.15"'
    parts: list[str] = []
    for tick in y_ticks:
        at = _n(plot.y(tick))
        parts.append(f'<line x1="{_LEFT}" y1="{at}" x2="{right}" y2="{at}" {rule}/>')
        parts.append(_text(Decimal(_LEFT - 8), plot.y(tick) + 4, y.text(tick), "end"))
    written_to = Decimal(0)
    for tick in x_ticks:
        at = _n(plot.x(tick))
        half = len(x.text(tick)) * _LETTER_WIDTH / 2
        if plot.x(tick) - half >= written_to:
            parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{bottom}" {rule}/>')
            parts.append(_text(plot.x(tick), Decimal(bottom + 20), x.text(tick), "middle"))
            written_to = plot.x(tick) + half + _LETTER_WIDTH
    parts.append(_text(Decimal((_LEFT + right) // 2), Decimal(bottom + 44), x.label, "middle"))
    parts.append(_text(Decimal(0), Decimal(_TOP - 20), y.label, "start"))
    return parts


def _line(plot: _Plot, line: Series) -> list[str]:
    if len(line.points) < 2:
        return []
    steps = " ".join(f"{_n(plot.x(x))},{_n(plot.y(y))}" for x, y in line.points)
    return [f'<polyline points="{steps}" fill="none" stroke-width="2" {_stroke(line)}/>']


def _marks(plot: _Plot, line: Series) -> list[str]:
    parts: list[str] = []
    written_to, written_at = Decimal(0), Decimal(0)
    for mark in line.marks:
        x, y = plot.x(mark.x), plot.y(mark.y)
        title = f"<title>{escape(mark.name)}</title>" if mark.name else ""
        colour = _COLOURS[line.style % len(_COLOURS)]
        parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="4" fill="{colour}">{title}</circle>')
        if mark.name:
            # Where the line does not go: below it on the right where it rises, else above it.
            length = len(mark.name) * _LETTER_WIDTH
            fits = x + 8 + length <= _WIDTH
            rises = len(line.points) > 1 and line.points[-1][1] > line.points[0][1]
            dx, dy, anchor = (8, 20 if rises else -8, "start")
            if not fits:
                dx, dy, anchor = -8, -10 if rises else 20, "end"
            elif x < written_to and abs(y - written_at) < _LETTER_HEIGHT:
                dy = 12 - dy
            written_to, written_at = x + dx + length, y
            parts.append(_text(x + dx, y + dy, mark.name, anchor, _HALO))
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts: list[str] = []
    top = _TOP + _PLOT_HEIGHT + _BOTTOM
    for index, line in enumerate(series):
        y = top + index * _LEGEND_ROW
        parts.append(f'<line x1="0" y1="{y}" x2="26" y2="{y}" stroke-width="2" {_stroke(line)}/>')
        parts.append(_text(Decimal(34), Decimal(y + 5), line.name, "start"))
    return parts


def _stroke(line: Series) -> str:
    dash = _DASHES[line.dash % len(_DASHES)]
    broken = f' stroke-dasharray="{dash}"' if dash else ""
    return f'stroke="{_COLOURS[line.style % len(_COLOURS)]}"{broken}'


def _text(x: Decimal, y: Decimal, content: str, anchor: str, style: str = "") -> str:
    at = f'x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}"'
    return f"<text {at} {_FONT}{style}>{escape(content)}</text>"


def _n(value: Decimal) -> str:
    """A coordinate with one digit behind the point."""
    return f"{rounded(value, Decimal('0.1')):f}"
