"""Tool calls as text: the forms that models write, and the one reader of evaluation and server.

Owns our form, which is Qwen's, and a tolerant reader that takes also Mistral's list, Llama's bare
object, and Glaive's arguments as a quoted JSON string. Does not judge the values.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNREADABLE = (ValueError, TypeError, RecursionError, MemoryError)
"""What Python's readers raise for text that is wrong, or nested too deeply for them."""
OPEN, CLOSE = "<tool_call>", "</tool_call>"
GLAIVE_OPEN = "<functioncall>"
MARKERS = (OPEN, GLAIVE_OPEN, "[TOOL_CALLS]")
_MARKER = re.compile("|".join(map(re.escape, MARKERS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a function by its name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """What a model writes around the name and the arguments of its calls."""

    before: str = f"{OPEN}\n"
    between: str | None = f"\n{CLOSE}\n{OPEN}\n"
    """None where one answer makes one call at most."""
    after: str = f"\n{CLOSE}"
    arguments: str = "arguments"
    has_id: bool = False
    """Whether an id of nine characters ends each call, as Mistral's."""


OWN_FORM = CallForm()
"""What a model is taught whose chat template knows no tools."""


def render(call: ToolCall) -> str:
    """Return the text of an assistant message that makes `call`."""
    body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
    return f"{OPEN}\n{body}\n{CLOSE}"


BARE = re.compile(r"\s*\[?\s*(?:\{|$)")
"""Start of calls without a marker: base models' and Llama's; Mistral's is decoded away."""
_NEXT = re.compile(r"\s*[,;]\s*(?=\{)")


def parse_calls(text: str) -> list[ToolCall] | None:
    """Return the calls in `text` in order; None when there is a call that cannot be read.

    A text without any call gives an empty list. Without a marker, a text that starts with a JSON
    object with a name and arguments, or with a list of them, counts as calls.
    """
    # Not the texts behind them: a model that repeats its marker would make a copy for each.
    starts = [marker.end() for marker in _MARKER.finditer(text)]
    if not starts:
        return (_calls_at_start(text) or []) if BARE.match(text) else []
    calls: list[ToolCall] = []
    for start in starts:
        found = _calls_at_start(text[start:])
        if found is None:
            return None
        calls += found
    return calls


def _calls_at_start(text: str) -> list[ToolCall] | None:
    """Return one call, or several of a list; its end may be missing, as a server stops early."""
    calls: list[ToolCall] = []
    text = text.strip().removeprefix("[").lstrip()
    while True:
        try:
            value, end = json.JSONDecoder(strict=False).raw_decode(text)
        except UNREADABLE:
            value, end = _glaive_object(text), len(text)
        call = call_of(value)
        if call is None:
            return None
        calls.append(call)
        more = _NEXT.match(text, end)
        if more is None:
            return calls
        text = text[more.end() :]


_QUOTED_ARGUMENTS = re.compile(r"""["']arguments["']\s*:\s*'""")


def _glaive_object(text: str) -> Any:
    """Read Glaive's form: {"name": "f", "arguments": '{"a": "it's"}'} with single quotes inside."""
    opening = _QUOTED_ARGUMENTS.search(text)
    if opening is None:
        return None
    try:
        call = json.loads(text[: opening.start()].rstrip().rstrip(",") + "}")
    except UNREADABLE:
        return None
    # As it stands first: JSON's own \\' (a backslash before an apostrophe) must not be unescaped.
    tail = text[opening.end() :]
    for inner in (tail, tail.replace("\\'", "'")):
        # The quoted text is JSON itself, so the object's own end is where a decoder stops; a search
        # for the closing quote would stop at an apostrophe inside a value.
        try:
            arguments, end = json.JSONDecoder(strict=False).raw_decode(inner.lstrip())
        except UNREADABLE:
            continue
        if inner.lstrip()[end:].lstrip().startswith("'"):
            return {**call, "arguments": arguments} if isinstance(call, dict) else None
    return None


def call_of(value: Any) -> ToolCall | None:
    """Return the call in an object with a name and arguments; None when it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _quoted_arguments(arguments)
    if not isinstance(arguments, dict):
        return None
    return ToolCall(name=value["name"], arguments=arguments)


def _quoted_arguments(text: str) -> Any:
    """Read arguments given as a string: JSON, or a Python literal as some rows have it."""
    if not text.strip():
        return {}
    try:
        return json.loads(text, strict=False)
    except UNREADABLE:
        try:
            value = ast.literal_eval(text)
            json.dumps(value)  # a set or bytes are no JSON, and a call is written as JSON
        except (*UNREADABLE, SyntaxError):
            return None
        return value
