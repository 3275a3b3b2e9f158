"""How an answer did on function calling: relevance, parsing, names, argument names, values.

Owns what is asked of a row: the calls of its possible answers (BFCL's rules, score.py), else the
calls of its reference text compared value by value, else no call at all. Several calls match in any
order, as in BFCL's parallel categories.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common.tool_calls import ToolCall, parse_calls
from workloads.data.bfcl import OPTIONAL
from workloads.data.chats import Chat
from workloads.evaluate.score import argument_problem, same_value

Expected = tuple[str, Mapping[str, Sequence[Any]]]
"""Function name, and the allowed values of every argument."""


def call_scores(chat: Chat, reference: str, generated: str) -> dict[str, float]:
    """Return the scores, 0 or 1 each, that apply to the row; none when it offers no function.

    `call_parse_failure` is 1 for a call that cannot be read: such an answer is wrong everywhere
    else, and is counted apart, as it is the format that failed. A row where no function fits has
    `relevance_accuracy` alone: 1 when the answer makes no call.
    """
    if not chat.functions:
        return {}
    calls = parse_calls(generated)
    scores = {"call_parse_failure": float(calls is None)}
    expected = _expected(chat, reference)
    if expected is None:
        return {}
    if not expected:
        return {**scores, "relevance_accuracy": float(calls == [])}
    calls = calls or []
    names = Counter(call.name for call in calls) == Counter(name for name, _ in expected)
    functions = {str(function.get("name")): function for function in chat.functions}
    by_rule = bool(chat.possible_answers)

    def names_fit(call: ToolCall, wanted: Expected) -> bool:
        return call.name == wanted[0] and _argument_names_fit(call, wanted[1])

    def values_fit(call: ToolCall, wanted: Expected) -> bool:
        name, allowed = wanted
        if call.name != name:
            return False
        if by_rule:
            return argument_problem(call, function=functions[name], allowed=allowed) is None
        return _argument_names_fit(call, allowed) and all(
            same_value(value, allowed[key][0]) for key, value in call.arguments.items()
        )

    return {
        **scores,
        "function_name_accuracy": float(names),
        "argument_name_accuracy": float(_pair_up(calls, expected, names_fit)),
        "argument_accuracy": float(_pair_up(calls, expected, values_fit)),
    }


def _expected(chat: Chat, reference: str) -> list[Expected] | None:
    """Return the calls that the row wants; None when its own reference cannot be read."""
    if chat.possible_answers:
        return [wanted for answer in chat.possible_answers for wanted in answer.items()]
    calls = parse_calls(reference)
    if calls is None:
        return None
    return [
        (call.name, {name: [value] for name, value in call.arguments.items()}) for call in calls
    ]


def _argument_names_fit(call: ToolCall, allowed: Mapping[str, Sequence[Any]]) -> bool:
    needed = {name for name, values in allowed.items() if OPTIONAL not in values}
    return needed <= set(call.arguments) <= set(allowed)


def _pair_up(calls: Sequence[ToolCall], expected: Sequence[Expected], fits: Any) -> bool:
    """Whether every expected call has a call of its own, in any order, and none is left."""
    if len(calls) != len(expected):
        return False
    left = list(calls)
    for wanted in expected:
        found = next((index for index, call in enumerate(left) if fits(call, wanted)), None)
        if found is None:
            return False
        del left[found]
    return True
