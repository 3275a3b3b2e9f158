"""Function-call accuracy against BFCL's possible answers, by the rules of BFCL's own checker.

Owns the matching rules of bfcl_eval/eval_checker/ast_eval/ast_checker.py (bfcl-eval 2026.3.23) for
Python functions, written anew: types are exact except int for float, strings compare without case,
spaces and ,./-_*^, optional arguments may be left out, unknown ones may not be given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workloads.common.tool_calls import ToolCall, parse_calls
from workloads.data.bfcl import OPTIONAL

TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How one answer did."""

    parsed: bool
    name_correct: bool
    arguments_correct: bool
    """True only with the right name: the call as a whole is correct."""
    reason: str | None = None


def score(
    text: str, *, functions: Sequence[Mapping[str, Any]], possible_answer: Mapping[str, Any]
) -> Score:
    """Return the score of a generated `text` that should be one call."""
    calls = parse_calls(text)
    if not calls:
        reason = "no call" if calls == [] else "the call cannot be read"
        return Score(parsed=False, name_correct=False, arguments_correct=False, reason=reason)
    if len(calls) != 1:
        reason = f"{len(calls)} calls, expected 1"
        return Score(parsed=True, name_correct=False, arguments_correct=False, reason=reason)
    ((name, allowed),) = possible_answer.items()
    if calls[0].name != name:
        reason = f"name {calls[0].name!r}, expected {name!r}"
        return Score(parsed=True, name_correct=False, arguments_correct=False, reason=reason)
    function = next(function for function in functions if function["name"] == name)
    problem = argument_problem(calls[0], function=function, allowed=allowed)
    return Score(parsed=True, name_correct=True, arguments_correct=problem is None, reason=problem)


def argument_problem(
    call: ToolCall, *, function: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]
) -> str | None:
    """Return the first thing wrong with the arguments of `call`; None when all are right."""
    details = function["parameters"]["properties"]
    for name in function["parameters"].get("required", ()):
        if name not in call.arguments:
            return f"required argument {name!r} is missing"
    for name, value in call.arguments.items():
        if name not in details or name not in allowed:
            return f"argument {name!r} is unexpected"
        if not _value_matches(value, detail=details[name], allowed=allowed[name]):
            return f"argument {name!r}: {value!r}, expected one of {list(allowed[name])}"
    for name, values in allowed.items():
        if name not in call.arguments and OPTIONAL not in values:
            return f"argument {name!r} is missing"
    return None


def _value_matches(value: Any, *, detail: Mapping[str, Any], allowed: Sequence[Any]) -> bool:
    expected = TYPES.get(str(detail.get("type")))
    if expected is None:  # a type of JSON schema or of Java, which BFCL's Python rules lack
        return _standard(value) in [_standard(item) for item in allowed]
    if expected is float and type(value) is int:
        value = float(value)
    given = [item for item in allowed if item != OPTIONAL]
    # BFCL lets an answer name a variable: the allowed value's type then differs from the declared
    # one, and the value counts with the allowed value's type.
    is_variable = bool(given) and type(given[0]) is not expected
    if type(value) is not expected:
        return bool(given) and type(value) is type(given[0]) and value in allowed
    if expected is list:
        item_type = TYPES.get(str(detail.get("items", {}).get("type")))
        if item_type and not _items_have_type(value, item_type, allowed):
            return False
        if is_variable:
            return value in allowed
        if item_type is dict:
            return any(_dicts_match(value, item) for item in given)
        return _standard_items(value) in [
            _standard_items(item) for item in allowed if isinstance(item, list)
        ]
    if is_variable:
        return value in allowed
    if expected is dict:
        return any(_dict_matches(value, item) for item in given)
    if expected is str:
        return _standard(value) in [_standard(item) for item in allowed if isinstance(item, str)]
    return value in allowed


def _items_have_type(values: Sequence[Any], item_type: type, allowed: Sequence[Any]) -> bool:
    """True when every item has the declared type, or the type of some allowed list's items."""
    if any(not isinstance(item, list) for item in allowed):
        return True
    for item in allowed:
        example = next((x for x in item if x != OPTIONAL), None)
        if all(type(x) is item_type or type(x) is type(example) for x in values):
            return True
    return False


def _dicts_match(values: Sequence[Any], allowed: Sequence[Any]) -> bool:
    return len(values) == len(allowed) and all(
        isinstance(value, dict) and _dict_matches(value, item)
        for value, item in zip(values, allowed, strict=True)
    )


def _dict_matches(value: Mapping[str, Any], allowed: Mapping[str, Sequence[Any]]) -> bool:
    for key, item in value.items():
        if key not in allowed or _standard(item) not in [_standard(x) for x in allowed[key]]:
            return False
    return all(key in value or OPTIONAL in values for key, values in allowed.items())


def _standard_items(values: Sequence[Any]) -> list[Any]:
    return [_standard(value) for value in values]


def _standard(value: Any) -> Any:
    """Return a string as BFCL compares it; other values as they are."""
    if not isinstance(value, str):
        return value
    return re.sub(r"[ ,./\-_*^]", "", value).lower().replace("'", '"')


def same_value(value: Any, wanted: Any) -> bool:
    """Whether two values are equal as BFCL compares strings, at any depth; 1 equals 1.0."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        return value.keys() == wanted.keys() and all(
            same_value(value[key], wanted[key]) for key in wanted
        )
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same_value, value, wanted))
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    return _standard(value) == _standard(wanted)
