"""How the page looks and what its buttons say; fonts of the system, no file of elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradio.themes import Base, Default

from workloads.chat.conversation import Vote

CSS: Final = Path(__file__).with_name("page.css")
VOTES: Final[Mapping[Vote, str]] = {
    "left": "Left is better",
    "tie": "Both alike",
    "right": "Right is better",
    "good": "Good answer",
    "bad": "Bad answer",
}
SAVE_FILE: Final = """(text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  link.download = "chat.json";
  link.click();
  URL.revokeObjectURL(link.href);
}"""
"""Gives the reader a text as a file, without a copy of it on the server."""


def theme() -> Base:
    """Return Gradio's plain theme with the fonts that the reader's system has."""
    # One accent: Send has this blue in page.css.
    accent = "*primary_700"
    plain = Default(
        primary_hue="blue",
        font=("system-ui", "sans-serif"),
        font_mono=("ui-monospace", "monospace"),
    )
    return plain.set(
        checkbox_background_color_selected=accent, checkbox_background_color_selected_dark=accent
    )
