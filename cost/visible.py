"""Text from files and clusters, as a terminal may show it: visible(text).

A name that a person gave on the cluster, or that stands in a file of others, could colour, erase or
turn around what the terminal shows beside it.
"""

from __future__ import annotations


def visible(text: str) -> str:
    r"""The text on one line; what is not printable as \xNN or \uNNNN."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
