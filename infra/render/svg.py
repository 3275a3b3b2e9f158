"""Boxes with lines of text, frames around them and arrows, as SVG text without scripts. Pure.

Owns the look of drawings. What is drawn is stack_drawing.py's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Final, Literal

Kind = Literal["plain", "gpu", "disk", "outside"]

LINE_PX: Final = 15
"""Height of a line of text."""
TITLE_PX: Final = 24
"""Height of a title with its space."""
_PAD_PX: Final = 10
_CHARACTER_PX: Final = 6.4
"""Upper bound of a character's mean width at 11 px."""
_STYLE: Final = (
    "text{font:11px sans-serif;fill:#24292f}"
    ".title{font-weight:bold;font-size:12px}"
    "rect{stroke:#57606a;stroke-width:1;rx:4}"
    ".plain{fill:#ffffff}.gpu{fill:#e6f4ea}.disk{fill:#fff4de}.outside{fill:#eaeef2}"
    ".frame{fill:none;stroke-dasharray:5 3}"
    "path{fill:none;stroke:#57606a;stroke-width:1.5}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a title and lines of text."""

    title: str
    lines: tuple[str, ...] = ()
    kind: Kind = "plain"
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    @property
    def least_width(self) -> float:
        """Width in px that holds its longest line."""
        longest = max(len(text) for text in (f"{self.title}  ", *self.lines))
        return longest * _CHARACTER_PX + 2 * _PAD_PX

    @property
    def least_height(self) -> float:
        """Height in px that holds all lines."""
        return TITLE_PX + len(self.lines) * LINE_PX + (_PAD_PX if self.lines else 4)

    @property
    def middle(self) -> float:
        """Its centre from the left."""
        return self.x + self.width / 2

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height


@dataclass(slots=True)
class Drawing:
    """What was drawn so far, back to front."""

    title: str
    _parts: list[str] = field(default_factory=list[str])
    _width: float = 0
    _height: float = 0

    def frame(self, title: str, x: float, y: float, width: float, height: float) -> None:
        """A dashed rectangle around what belongs together."""
        self._grow(x + width, y + height)
        self._parts.append(_rect("frame", x, y, width, height))
        self._parts.append(_text("title", x + _PAD_PX, y + 16, title))

    def box(self, box: Box) -> None:
        """A box where it says."""
        self._grow(box.x + box.width, box.bottom)
        self._parts.append(_rect(box.kind, box.x, box.y, box.width, box.height))
        self._parts.append(_text("title", box.x + _PAD_PX, box.y + 16, box.title))
        for number, line in enumerate(box.lines, 1):
            self._parts.append(_text("", box.x + _PAD_PX, box.y + 18 + number * LINE_PX, line))

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """A straight line without a head, the first part of an arrow that turns."""
        self._parts.append(f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float, label: str = "") -> None:
        """A straight line to (x2, y2) with a head, its label beside the middle."""
        self._parts.append(
            f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}" marker-end="url(#head)"/>'
        )
        if label:
            self._parts.append(_text("", (x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4, label))

    def text(self) -> str:
        """The whole picture."""
        width, height = self._width + 2 * _PAD_PX, self._height + 2 * _PAD_PX
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8"/></marker>'
        )
        return "\n".join(
            [
                (
                    f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" '
                    f'height="{height:.0f}" '
                    f'viewBox="{-_PAD_PX} {-_PAD_PX} {width:.0f} {height:.0f}">'
                ),
                f"<title>{escape(self.title)}</title>",
                f"<style>{_STYLE}</style><defs>{head}</defs>",
                (
                    f'<rect x="{-_PAD_PX}" y="{-_PAD_PX}" width="{width:.0f}" '
                    f'height="{height:.0f}" style="fill:#ffffff;stroke:none"/>'
                ),
                *self._parts,
                "</svg>\n",
            ]
        )

    def _grow(self, right: float, bottom: float) -> None:
        self._width = max(self._width, right)
        self._height = max(self._height, bottom)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}"/>'
    )


def _text(kind: str, x: float, y: float, text: str) -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:.0f}" y="{y:.0f}">{escape(text)}</text>'
