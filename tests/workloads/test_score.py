"""The scorer on real BFCL rows: each case is a rule of BFCL's own checker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.conftest import EXCERPT
from workloads.common.tool_calls import ToolCall, render
from workloads.data import calls
from workloads.evaluate.scores import Score, score

CHATS = {chat.id.removeprefix("simple_python_"): chat for chat in calls.read_bfcl(EXCERPT)}


def scored(row: str, arguments: dict[str, Any], name: str | None = None) -> Score:
    """Returns the score of one call for the row."""
    chat = CHATS[row]
    text = render(ToolCall(name=name or chat.group, arguments=arguments))
    return score(text, functions=chat.functions, possible_answer=chat.possible_answers[0])


@pytest.mark.feature("S001-08")
@pytest.mark.parametrize("row", sorted(CHATS))
def test_every_reference_answer_is_right(row: str) -> None:
    chat = CHATS[row]
    result = score(
        chat.messages[-1]["content"],
        functions=chat.functions,
        possible_answer=chat.possible_answers[0],
    )
    assert result == Score(parsed=True, name_correct=True, arguments_correct=True)


@pytest.mark.parametrize(
    ("row", "arguments"),
    [
        # An optional argument may be left out or given with an allowed value.
        ("0", {"base": 10, "height": 5}),
        ("0", {"base": 10, "height": 5, "unit": "Units"}),
        # A whole number counts for a float.
        ("122", {"table": [[10, 20], [30, 40]], "alpha": 0.05}),
        # Strings compare without case, spaces and punctuation.
        ("89", {
            "database_name": "student_db",
            "table_name": "Students",
            "conditions": {"department": "science", "school": "bluebird hs"},
        }),
        # A tuple arrives as a list.
        ("83", {"coord1": [33.4484, -112.074], "coord2": [34.0522, -118.2437], "unit": "miles"}),
        # One of several allowed lists.
        ("149", {"company_names": ["AAPL", "MSFT"]}),
        # An allowed value of another type than declared: the type of the answer counts.
        ("307", {"venue": True}),
    ],
)  # fmt: skip
def test_allowed_variants_are_right(row: str, arguments: dict[str, Any]) -> None:
    chat = CHATS[row]
    ((_, allowed),) = chat.possible_answers[0].items()
    # Arguments that a case does not speak of come from the reference.
    reference = calls.reference_call(
        chat.possible_answers[0], required=chat.functions[0]["parameters"]["required"]
    ).arguments
    assert set(arguments) <= set(allowed)
    assert scored(row, {**reference, **arguments}).reason is None


@pytest.mark.parametrize(
    ("row", "arguments", "reason"),
    [
        ("0", {"base": 10}, "required argument 'height' is missing"),
        ("0", {"base": 10, "height": 5, "color": "red"}, "'color' is unexpected"),
        ("0", {"base": "10", "height": 5}, "'base': '10', expected one of"),
        ("0", {"base": 10.0, "height": 5}, "'base': 10.0, expected one of"),
        ("0", {"base": True, "height": 5}, "'base': True, expected one of"),
        ("0", {"base": 10, "height": 6}, "'height': 6, expected one of"),
        ("149", {"company_names": ["MSFT", "AAPL"]}, "'company_names'"),
        ("94", {"user_id": 43523, "update_info": {"name": "John Doe"}}, "'update_info'"),
        ("96", {"table": "user", "conditions": []}, "'conditions'"),
    ],
)
def test_wrong_arguments_are_wrong_for_the_right_reason(
    row: str, arguments: dict[str, Any], reason: str
) -> None:
    result = scored(row, arguments)
    assert (result.name_correct, result.arguments_correct) == (True, False)
    assert result.reason is not None
    assert reason in result.reason


def test_the_wrong_function_scores_nothing() -> None:
    result = scored("0", {"base": 10, "height": 5}, name="other")
    assert (result.parsed, result.name_correct, result.arguments_correct) == (True, False, False)


@pytest.mark.parametrize("text", ["The area is 25.", "<tool_call>{broken</tool_call>", ""])
def test_an_answer_without_a_readable_call_is_not_parsed(text: str) -> None:
    """Tool output can be malformed in every call and still score 100 % elsewhere."""
    chat = CHATS["0"]
    result = score(text, functions=chat.functions, possible_answer=chat.possible_answers[0])
    assert (result.parsed, result.name_correct) == (False, False)


def test_two_calls_are_wrong_where_one_is_asked() -> None:
    chat = CHATS["0"]
    text = chat.messages[-1]["content"] * 2
    result = score(text, functions=chat.functions, possible_answer=chat.possible_answers[0])
    assert result.reason == "2 calls, expected 1"
