"""Rows of glaive-function-calling-v2: one text of turns, calls with arguments in single quotes.

Owns the split into turns. The calls themselves are read in workloads/common/tool_calls.py, whose
form they get; a call that cannot be read refuses the row, it is never cut short.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from workloads.common import tool_calls
from workloads.common.exit_codes import DataError

_TURN = re.compile(r"(?:^|\n)[ \t]*(USER|ASSISTANT|FUNCTION RESPONSE):")
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_END = "<|endoftext|>"


def read(
    row: Mapping[str, Any], *, at: str
) -> tuple[list[dict[str, str]], list[Mapping[str, Any]]]:
    """Return the messages of the row's `system` and `chat`, and the functions on offer."""
    chat = row.get("chat")
    if not isinstance(chat, str):
        raise DataError(f"{at}: column chat is {type(chat).__name__}, expected Glaive's text")
    system = str(row.get("system") or "").strip().removeprefix("SYSTEM:").strip()
    messages = [{"role": "system", "content": system}] if system else []
    before, *parts = _TURN.split(chat)
    if before.strip():
        raise DataError(f"{at}: chat does not start with USER: but with {before.strip()[:60]!r}")
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        content = text.replace(_END, "").strip()
        if name == "ASSISTANT" and tool_calls.GLAIVE_OPEN in content:
            content = _with_calls(content, at=at)
        messages.append({"role": _ROLES[name], "content": content})
    return messages, _functions(system)


def _with_calls(content: str, *, at: str) -> str:
    """Return an assistant's turn with its calls in our form."""
    before = content.partition(tool_calls.GLAIVE_OPEN)[0].strip()
    calls = tool_calls.parse_calls(content)
    if not calls:
        raise DataError(f"{at}: function call cannot be read: {content[:200]!r}")
    return "\n".join([before, *map(tool_calls.render, calls)]).strip()


def _functions(system: str) -> list[Mapping[str, Any]]:
    """Return the JSON objects that the system text lists, as BFCL describes functions."""
    decoder = json.JSONDecoder(strict=False)
    found: list[Mapping[str, Any]] = []
    position = system.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(system, position)
        except (ValueError, RecursionError):
            return found
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            found.append(value)
        position = system.find("{", end)
    return found
