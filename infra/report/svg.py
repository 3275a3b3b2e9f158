"""Small SVG words: every text is escaped here, every colour is a variable of the page's style."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def text(x: float, y: float, content: object, cls: str = "t", anchor: str = "start") -> str:
    """One line of text with its baseline at y."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{cls}" text-anchor="{anchor}">'
        f"{escape(str(content))}</text>"
    )


def rect(x: float, y: float, width: float, height: float, cls: str, radius: float = 8) -> str:
    """A rectangle with round corners."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{radius}" class="{cls}"/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, cls: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{cls}"/>'


def document(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """The picture, scaling with the page; `label` is what a screen reader says."""
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )


def clip(content: str, characters: int) -> str:
    """The text, cut to fit with an ellipsis."""
    return content if len(content) <= characters else content[: characters - 3] + "..."
