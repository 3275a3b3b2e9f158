"""Line charts as inline SVG: line_chart(key, title, description, x, y, series) -> text.

Self-contained: no script, no style sheet, no request; ink is the page's own (currentColor), lines
differ in colour and dash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

from cost.report.layout import rounded
from stacks.files import fill

# Two stand side by side on a desk; on a phone, 330 px wide, a letter still has 9 px.
_WIDTH: Final = 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 492, 64, 314
"""The plot inside the picture."""
_LETTER_WIDTH, _LETTER_HEIGHT = Decimal(8), 17
"""About what a letter of the font takes; names are placed by it, not measured."""
_Placing = Callable[[Decimal], Decimal]


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
    y_ticks = ticks(min(up), max(up), y.scale)
    to_x = _place(min(across), max(across), x.scale, _LEFT, _RIGHT)
    to_y = _place(min(y_ticks[0], *up), max(y_ticks[-1], *up), y.scale, _BOTTOM, _TOP)
    x_ticks = [
        (to_x(tick), x.text(tick))
        for tick in x.ticks or ticks(min(across), max(across), x.scale)
        if min(across) <= tick <= max(across)
    ]
    return fill(
        Path(__file__).with_name("chart.svg.j2"),
        n=_n,
        key=key,
        title=title,
        description=description,
        x_label=x.label,
        y_label=y.label,
        x_ticks=[*_apart(x_ticks)],
        y_ticks=[(to_y(tick), y.text(tick)) for tick in y_ticks],
        lines=[
            (
                line,
                [(to_x(at), to_y(value)) for at, value in line.points],
                [*_marks(line, to_x, to_y)],
            )
            for line in series
        ],
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
        width=_WIDTH,
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


def _place(low: Decimal, high: Decimal, scale: Scale, start: int, end: int) -> _Placing:
    """Values low..high -> start..end in the picture's own units."""

    def measure(value: Decimal) -> Decimal:
        return value.log10() if scale is Scale.LOG else value

    first, whole = measure(low), measure(high) - measure(low)

    def place(value: Decimal) -> Decimal:
        share = (measure(value) - first) / whole if whole else Decimal(0)
        return start + share * (end - start)

    return place


def _apart(texts: Sequence[tuple[Decimal, str]]) -> Iterator[tuple[Decimal, str]]:
    """Those under the picture that do not cover the one before them."""
    written_to = Decimal(0)
    for x, text in texts:
        half = len(text) * _LETTER_WIDTH / 2
        if x - half >= written_to:
            yield x, text
            written_to = x + half + _LETTER_WIDTH


def _marks(
    line: Series, to_x: _Placing, to_y: _Placing
) -> Iterator[tuple[Decimal, Decimal, str, Decimal, Decimal, str]]:
    """Place of each dot and its name, then place and anchor of the name."""
    written_to, written_at = Decimal(0), Decimal(0)
    rises = len(line.points) > 1 and line.points[-1][1] > line.points[0][1]
    for mark in line.marks:
        x, y, length = to_x(mark.x), to_y(mark.y), len(mark.name) * _LETTER_WIDTH
        # Where the line does not go: below it on the right where it rises, else above it.
        dx, dy, anchor = (8, 20 if rises else -8, "start")
        if x + 8 + length > _WIDTH:
            dx, dy, anchor = -8, -10 if rises else 20, "end"
        elif x < written_to and abs(y - written_at) < _LETTER_HEIGHT:
            dy = 12 - dy
        if mark.name:
            written_to, written_at = x + dx + length, y
        yield x, y, mark.name, x + dx, y + dy, anchor


def _n(value: Decimal | int) -> str:
    """A coordinate with one digit behind the point."""
    return f"{rounded(Decimal(value), Decimal('0.1')):f}"
