"""The scorer on real BFCL rows: each case is a rule of BFCL's own checker."""

from __future__ import annotations

from typing import Any

import pytest

from tests.workloads.conftest import EXCERPT
from workloads.common.tool_calls import ToolCall, render
from workloads.data.chats import read_bfcl, reference_call, text_of
from workloads.evaluate.scores import call_scores

CHATS = {chat.id.removeprefix("simple_python_"): chat for chat in read_bfcl(EXCERPT)}


def verdict(row: str, text: str) -> tuple[float, ...]:
    """Returns parse failure, name, argument names, arguments of an answer to the row."""
    return tuple(call_scores(CHATS[row], "", text).values())


def scored(row: str, arguments: dict[str, Any], name: str | None = None) -> tuple[float, ...]:
    """Returns the verdict on one call for the row."""
    return verdict(row, render(ToolCall(name=name or CHATS[row].group, arguments=arguments)))


RIGHT = (0, 1, 1, 1)


@pytest.mark.feature("S001-08")
@pytest.mark.parametrize("row", sorted(CHATS))
def test_every_reference_answer_is_right(row: str) -> None:
    assert verdict(row, text_of(CHATS[row].messages[-1])) == RIGHT


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
    reference = reference_call(
        chat.possible_answers[0], required=chat.functions[0]["parameters"]["required"]
    ).arguments
    assert set(arguments) <= set(allowed)
    assert scored(row, {**reference, **arguments}) == RIGHT


@pytest.mark.parametrize(
    ("row", "arguments", "names"),
    [
        ("0", {"base": 10}, 0),
        ("0", {"base": 10, "height": 5, "color": "red"}, 0),
        ("0", {"base": "10", "height": 5}, 1),
        ("0", {"base": 10.0, "height": 5}, 1),
        ("0", {"base": True, "height": 5}, 1),
        ("0", {"base": 10, "height": 6}, 1),
        ("149", {"company_names": ["MSFT", "AAPL"]}, 1),
        ("94", {"user_id": 43523, "update_info": {"name": "John Doe"}}, 1),
        ("96", {"table": "user", "conditions": []}, 1),
    ],
)
def test_wrong_arguments_are_wrong_and_the_name_is_right(
    row: str, arguments: dict[str, Any], names: int
) -> None:
    assert scored(row, arguments) == (0, 1, names, 0)


def test_the_wrong_function_scores_nothing() -> None:
    assert scored("0", {"base": 10, "height": 5}, name="other") == (0, 0, 0, 0)


@pytest.mark.parametrize("text", ["The area is 25.", "<tool_call>{broken</tool_call>", ""])
def test_an_answer_without_a_readable_call_is_right_in_nothing(text: str) -> None:
    """Tool output can be malformed in every call and still score 100 % elsewhere."""
    assert verdict("0", text) == (float("broken" in text), 0, 0, 0)


def test_two_calls_are_wrong_where_one_is_asked() -> None:
    assert verdict("0", text_of(CHATS["0"].messages[-1]) * 2) == (0, 0, 0, 0)
