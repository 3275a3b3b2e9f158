"""Calls in a text that comes in pieces: told as they come, and the same wherever it is cut."""

from __future__ import annotations

import json

import pytest

from workloads.common.tool_calls import parse_calls
from workloads.serve.text import ToolStream


def test_text_before_a_marker_is_told_at_once() -> None:
    stream = ToolStream()
    pieces = ("Let me <", "b> see.", "\n<tool", "_call>")
    assert [stream.push(each)[0] for each in pieces] == ["Let me", " <b> see.", "", ""]
    assert stream.finish() == ("\n<tool_call>", []), "no call, so nothing of it is lost"


def told_by(text: str, size: int, **options: bool) -> tuple[str, list[tuple[str | None, str]]]:
    """What a stream tells of `text` in pieces of `size`: text, and calls put together."""
    stream = ToolStream(**options)
    told, parts = "", []
    for start in range(0, len(text), size):
        piece, more = stream.push(text[start : start + size])
        told, parts = told + piece, parts + more
    rest, more = stream.finish()
    parts += more
    names = {part.index: part.name for part in reversed(parts)}
    whole = [
        (name, "".join(part.arguments for part in parts if part.index == index))
        for index, name in sorted(names.items())
    ]
    return told + rest, whole


HARD = r'{"text": "a \"quote\", {a brace}, </tool_call> and a back\\slash", "list": [{"x": 1}]}'
USUAL = f'<tool_call>{{"name": "a\\u00e9", "arguments": {HARD}}}</tool_call>'
SWAPPED = '<tool_call>{"arguments": {"y": 2}, "name": "b"}</tool_call>'
LLAMA = f'{{"name": "d", "parameters": {HARD}}}'
MISTRAL = f'{{"name": "e", "arguments": {HARD}, "id": "abcDEF123"}}'
GLAIVE = """<functioncall> {"name": "c", "arguments": '{"z": "it's"}'} """


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("text", "is_cut"),
    [
        (f"{USUAL}\n<tool_c", True),
        (f"{USUAL}\n<", True),
        (f"{SWAPPED}\n<tool_c", True),
        (f"{GLAIVE}<functioncall", True),
        (f"[TOOL_CALLS][{MISTRAL}, ", True),
        (f"[{MISTRAL},", True),
        (f"{LLAMA}; ", True),
        (f"{USUAL}\n<tool_call>", True),
        (f"{USUAL}\n", False),
        (USUAL.removesuffix("tool_call>"), False),
        (f"[{MISTRAL}", False),
    ],
)
def test_calls_cut_before_a_further_one_can_be_read_are_cut(
    size: int, text: str, is_cut: bool
) -> None:
    stream = ToolStream()
    for start in range(0, len(text), size):
        stream.push(text[start : start + size])
    stream.finish()
    assert stream.is_cut == is_cut


def test_nothing_behind_the_one_call_that_may_be_made_cuts_it() -> None:
    for rest in ("<tool_c", '<tool_call>{"na'):
        stream = ToolStream(is_parallel=False)
        stream.push(USUAL + rest)
        stream.finish()
        assert not stream.is_cut, rest


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "number"),
    [
        (USUAL + USUAL, 2),
        (USUAL + SWAPPED, 2),
        (SWAPPED + USUAL, 2),
        (GLAIVE, 1),
        (LLAMA, 1),
        (f"{LLAMA}; {LLAMA}", 2),
        (f"[{MISTRAL}]", 1),
        (f"[{MISTRAL}, {MISTRAL}]", 2),
        (f"[TOOL_CALLS][{MISTRAL}, {MISTRAL}]", 2),
        (f"[TOOL_CALLS] [{MISTRAL}", 1),
    ],
)
def test_parts_of_calls_are_the_calls_whatever_the_pieces(
    size: int, text: str, number: int
) -> None:
    told, parts = told_by(text, size)
    calls = parse_calls(text) or []
    assert (told, len(calls)) == ("", number)
    assert [(name, json.loads(each)) for name, each in parts] == [
        (call.name, call.arguments) for call in calls
    ]


def test_a_line_break_in_an_argument_is_escaped_in_the_stream() -> None:
    _, parts = told_by('<tool_call>{"name": "a", "arguments": {"t": "1\n2"}}', 1)
    assert json.loads(parts[0][1]) == {"t": "1\n2"}


@pytest.mark.parametrize("text", ["[1, 2]", "[", "[link](x) and {y}", '[{"a": 1}]', "[TOOL_CALLS"])
def test_what_only_begins_like_a_list_of_calls_is_text(text: str) -> None:
    for size in (1, 100):
        assert told_by(text, size) == (text, [])


def test_an_object_is_no_call_where_the_text_must_be_json() -> None:
    text = '{"name": "Bob", "age": 3}'
    assert told_by(text, 4, takes_objects=False) == (text, [])
