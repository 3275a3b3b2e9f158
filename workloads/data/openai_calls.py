"""Rows with `messages` as OpenAI's API writes them, with or without `tools` and `tool_calls`.

Owns how tools and calls become text: the system message offers the tools, calls stand in the
assistant's content. Columns may hold JSON as text, as CSV files have it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common import tool_calls
from workloads.common.exit_codes import DataError
from workloads.data.offer import OPTIONAL, system_prompt


def read(
    row: Mapping[str, Any], *, at: str
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """Return the row's messages in our form and the functions on offer."""
    messages = _value(row.get("messages"), at=f"{at}: messages")
    if not isinstance(messages, (list, tuple)):
        raise DataError(f"{at}: 'messages' is {type(messages).__name__}, expected a list")
    functions = _functions(_value(row.get("tools"), at=f"{at}: tools"), at=at)
    plain = [_message(message, at=f"{at}: messages[{i}]") for i, message in enumerate(messages)]
    if functions:
        offer = system_prompt(functions, how=OPTIONAL)
        if plain and plain[0].get("role") == "system":
            plain[0] = {**plain[0], "content": f"{plain[0]['content']}\n\n{offer}"}
        else:
            plain.insert(0, {"role": "system", "content": offer})
    return plain, functions


def _message(message: Any, *, at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise DataError(f"{at} is {type(message).__name__}, expected a mapping")
    role, content = message.get("role"), _content(message.get("content"), at=at)
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DataError(f"{at}.tool_calls is {type(calls).__name__}, expected a list")
    if message.get("function_call"):  # the API's form before November 2023
        calls = [{"function": message["function_call"]}]
    if calls:
        if content is not None and not isinstance(content, str):
            raise DataError(f"{at}.content is {type(content).__name__}, expected text")
        content = "\n".join([content or "", *(_call(call, at=at) for call in calls)]).strip()
    names = {"developer": "system", "function": "tool"}
    return {"role": names.get(role, role) if isinstance(role, str) else role, "content": content}


def _content(content: Any, *, at: str) -> Any:
    """Return the text of a list of parts joined; images and sound are refused."""
    if not isinstance(content, (list, tuple)):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise DataError(f"{at}.content has a part that is not text: {str(part)[:80]}")
    return "".join(str(part.get("text", "")) for part in content)


def _call(call: Any, *, at: str) -> str:
    body = call.get("function", call) if isinstance(call, Mapping) else call
    parsed = tool_calls.call_of(body)
    if parsed is None:
        raise DataError(f"{at}: tool call cannot be read: {json.dumps(call, default=str)[:200]}")
    return tool_calls.render(parsed)


def _functions(tools: Any, *, at: str) -> list[Mapping[str, Any]]:
    if not tools:
        return []
    if not isinstance(tools, Sequence):
        raise DataError(f"{at}: 'tools' is {type(tools).__name__}, expected a list")
    functions = [t.get("function", t) if isinstance(t, Mapping) else t for t in tools]
    for index, function in enumerate(functions):
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise DataError(f"{at}: tools[{index}] has no function name: {str(function)[:80]}")
    return functions


def _value(value: Any, *, at: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{at} is text that is not JSON: {error}") from error
