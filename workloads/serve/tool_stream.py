"""Text and tool calls of one answer, parted while it streams.

Owns what is held back: from a call's marker on, an end that may become a marker, and a whole answer
that starts like a JSON object (base models write calls so). tool_calls.py reads the calls.
"""

from __future__ import annotations

from workloads.common import tool_calls
from workloads.common.tool_calls import ToolCall

_MARKERS = (tool_calls.OPEN, tool_calls.GLAIVE_OPEN)


class ToolStream:
    """`push` text as it comes; `finish` says what is left and which calls were made."""

    def __init__(self) -> None:
        self._held = ""
        self._has_marker = False
        self._has_told = False

    def push(self, text: str) -> str:
        """Return the text that is sure to be no call."""
        self._held += text
        if self._has_marker or self._looks_like_object():
            return ""
        found = [place for mark in _MARKERS if (place := self._held.find(mark)) >= 0]
        self._has_marker = bool(found)
        overlap = max(_overlap(self._held, mark) for mark in _MARKERS)
        cut = min(found) if found else len(self._held) - overlap
        # Space before a call belongs to neither; space before more text is told with it.
        cut = len(self._held[:cut].rstrip())
        told, self._held = self._held[:cut], self._held[cut:]
        self._has_told = self._has_told or bool(told)
        return told

    def finish(self) -> tuple[str, list[ToolCall]]:
        """Return the rest of the text and the calls; calls that cannot be read stay text."""
        calls = tool_calls.parse_calls(self._held)
        if not calls:
            return self._held, []
        return "", calls

    def _looks_like_object(self) -> bool:
        return not self._has_told and self._held.lstrip().startswith("{")


def _overlap(text: str, marker: str) -> int:
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-length:]):
            return length
    return 0
