"""Text that stands in a cell of a Markdown table."""

from __future__ import annotations


def cell(text: object) -> str:
    """The text on one line, without what would end the cell or start a tag."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
