"""A chat, the one row format of prepared data, and the function calls in it.

Owns how a chat template gets functions and calls, OpenAI's rows, and BFCL's categories.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workloads.common import tool_calls
from workloads.common.exit_codes import DataError
from workloads.common.tool_calls import CLOSE, OPEN, ToolCall
from workloads.data.manifest import json_lines
from workloads.recipes.data import BFCL_NO_CALL, BFCL_SIMPLE

ROLES = ("system", "user", "assistant", "tool")
Message = Mapping[str, Any]
"""`role`, `content`, `tool_calls` as OpenAI has them, `arguments` as an object, `tool_call_id`."""
Functions = Sequence[Mapping[str, Any]]
"""Descriptions of functions: name, description, parameters."""
_FORM = f'{OPEN}\n{{"name": "function_name", "arguments": {{"argument": "value"}}}}\n{CLOSE}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation."""

    id: str
    messages: tuple[Message, ...]
    group: str
    """Chats of one group never end up on both sides of a split."""
    functions: tuple[Mapping[str, Any], ...] = ()
    """Descriptions of the functions on offer, in BFCL's form."""
    possible_answers: tuple[Mapping[str, Any], ...] = ()
    """Of each wanted call: function name -> argument -> allowed values, in BFCL's form."""
    columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Raw columns that the recipe keeps, for stratified splits."""

    def to_line(self) -> bytes:
        """Return the row as one line of UTF-8."""
        answers = [dict(answer) for answer in self.possible_answers]
        values = {
            "id": self.id,
            "group": self.group,
            "messages": [dict(message) for message in self.messages],
            "functions": [dict(function) for function in self.functions],
            # One call is written without a list, as most rows want one.
            "possible_answer": answers[0] if len(answers) == 1 else answers or None,
            "columns": dict(self.columns),
        }
        text = json.dumps(values, ensure_ascii=False, default=str)
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError as error:  # half of a surrogate pair, as \\ud83d in JSON
            at = text[max(0, error.start - 20) : error.start]
            raise DataError(f"text after {at!r} is not Unicode: {error.reason}") from error


def check_messages(messages: Any, *, at: str) -> tuple[Message, ...]:
    """Return `messages` in our form: known roles, text content, an assistant turn, not as first."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise DataError(f"{at}: 'messages' is {_short(messages)}, expected a list of messages")
    checked: list[Message] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise DataError(f"{at}: messages[{index}] is {_short(message)}, expected a mapping")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise DataError(
                f"{at}: messages[{index}].role is {_short(role)}, allowed: {', '.join(ROLES)}"
            )
        if not isinstance(content, str) or not (content.strip() or message.get("tool_calls")):
            raise DataError(f"{at}: messages[{index}].content is {_short(content)}, expected text")
        more = {name: message[name] for name in ("tool_calls", "tool_call_id") if name in message}
        checked.append({"role": role, "content": content, **more})
    if all(message["role"] != "assistant" for message in checked):
        raise DataError(
            f"{at}: no assistant turn in {len(checked)} messages, so there is nothing to learn"
        )
    if checked[0]["role"] == "assistant":
        raise DataError(
            f"{at}: messages[0].role is assistant, but nothing before it asks for an answer; "
            "start with a system or user message"
        )
    return tuple(checked)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def group_of(messages: tuple[Message, ...]) -> str:
    """Return what the chat asks first, white space aside: equal questions are one group."""
    first = next((m["content"] for m in messages if m["role"] == "user"), messages[0]["content"])
    return " ".join(first.split())


def parse_line(line: str | bytes, *, at: str) -> Chat:
    """Return the chat in one JSON line; only `messages` is required."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{at}: is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise DataError(f"{at}: is {_short(row)}, expected an object with 'messages'")
    messages = check_messages(row.get("messages"), at=at)
    answers = row.get("possible_answer") or []
    return Chat(
        id=str(row.get("id", at)),
        messages=messages,
        group=str(row.get("group") or group_of(messages)),
        functions=tuple(row.get("functions") or ()),
        possible_answers=tuple(answers if isinstance(answers, list) else [answers]),
        columns=row.get("columns") or {},
    )


def iter_jsonl(path: Path) -> Iterator[Chat]:
    """Yield the chats of a file one by one."""
    if not path.is_file():
        raise DataError(f"{path}: missing; run prepare-data first")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield parse_line(line, at=f"{path}:{number}")


def read_jsonl(path: Path) -> list[Chat]:
    """Return all chats of a file."""
    return list(iter_jsonl(path))


def system_prompt(functions: Functions) -> str:
    """Return the message: one line of JSON a function, then the form of a call."""
    lines = "\n".join(json.dumps(dict(function), ensure_ascii=False) for function in functions)
    return f"You call functions. The functions you may use:\n{lines}\nTo call one, write:\n{_FORM}"


def calls_of(message: Message) -> list[ToolCall]:
    """Return the calls that a message makes."""
    found = [tool_calls.call_of(each["function"]) for each in message.get("tool_calls") or ()]
    return [each for each in found if each is not None]


def text_of(message: Message) -> str:
    """Return the message as text, its calls in our form."""
    calls = "\n".join(map(tool_calls.render, calls_of(message)))
    return f"{message['content']}\n{calls}".strip() if calls else message["content"]


def for_template(
    messages: Sequence[Message], functions: Functions, *, knows_tools: bool
) -> tuple[Sequence[Message], dict[str, Any]]:
    """Return messages and options of apply_chat_template that offer `functions`.

    A template that knows no tools would drop them and the calls: it gets both as text.
    """
    if knows_tools:
        tools = [{"type": "function", "function": dict(each)} for each in functions]
        return messages, {"tools": tools} if tools else {}
    plain = [{"role": each["role"], "content": text_of(each)} for each in messages]
    if functions:
        offer = system_prompt(functions)
        if plain[0]["role"] == "system":
            offer = f"{plain.pop(0)['content']}\n\n{offer}"
        plain.insert(0, {"role": "system", "content": offer})
    return plain, {}


def read_openai(row: Mapping[str, Any], *, at: str) -> tuple[list[dict[str, Any]], Functions]:
    """Return the row's messages in our form and the functions on offer."""
    messages = _value(row.get("messages"), at=f"{at}: messages")
    if not isinstance(messages, (list, tuple)):
        raise DataError(f"{at}: 'messages' is {type(messages).__name__}, expected a list")
    functions = _functions(_value(row.get("tools"), at=f"{at}: tools"), at=at)
    made = [_message(message, at=f"{at}: messages[{i}]") for i, message in enumerate(messages)]
    return number_calls(made), functions


def _message(message: Any, *, at: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise DataError(f"{at} is {type(message).__name__}, expected a mapping")
    role, content = message.get("role"), _content(message.get("content"), at=at)
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, (list, tuple)):
        raise DataError(f"{at}.tool_calls is {type(calls).__name__}, expected a list")
    if message.get("function_call"):  # the API's form before November 2023
        calls = [{"function": message["function_call"]}]
    names = {"developer": "system", "function": "tool"}
    made = {"role": names.get(role, role) if isinstance(role, str) else role, "content": content}
    if calls:
        if content is not None and not isinstance(content, str):
            raise DataError(f"{at}.content is {type(content).__name__}, expected text")
        ids = (call.get("id") if isinstance(call, Mapping) else None for call in calls)
        made |= with_calls(content or "", [_call(call, at=at) for call in calls], ids)
    elif message.get("tool_call_id") is not None:
        made["tool_call_id"] = message["tool_call_id"]
    return made


def with_calls(content: str, calls: Sequence[ToolCall], ids: Iterable[Any] = ()) -> dict[str, Any]:
    """Return an assistant's message that makes `calls`."""
    functions = ({"name": call.name, "arguments": dict(call.arguments)} for call in calls)
    made = [
        {"id": given, "type": "function", "function": function}
        for function, given in zip_longest(functions, ids)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def number_calls(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the calls, and the results by their calls: in their order where they have no id.

    Mistral's template takes ids of nine characters; chats that differ in ids alone are equal.
    """
    numbers = (f"{number:09d}" for number in count())
    waiting: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            number = next(numbers)
            waiting[str(call["id"] or number)] = call["id"] = number
        if message["role"] == "tool":
            first = next(iter(waiting), "")
            given = str(message.get("tool_call_id"))
            message["tool_call_id"] = waiting.pop(given if given in waiting else first, "0" * 9)
    return messages


def _content(content: Any, *, at: str) -> Any:
    """Return the text of a list of parts joined; images and sound are refused."""
    if not isinstance(content, (list, tuple)):
        return content
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text":
            raise DataError(f"{at}.content has a part that is not text: {str(part)[:80]}")
    return "".join(str(part.get("text", "")) for part in content)


def _call(call: Any, *, at: str) -> ToolCall:
    body = call.get("function", call) if isinstance(call, Mapping) else call
    parsed = tool_calls.call_of(body)
    if parsed is None:
        raise DataError(f"{at}: tool call cannot be read: {json.dumps(call, default=str)[:200]}")
    return parsed


def _functions(tools: Any, *, at: str) -> Functions:
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


OPTIONAL = ""
"""In a list of allowed values: the argument may be left out."""
NO_CALL = "None of these functions fits the question."
"""Reference of a row that wants no call: BFCL has none, as it only asks whether there is a call."""


def reference_call(possible_answer: Mapping[str, Any], *, required: Collection[str]) -> ToolCall:
    """Return the call made of the first allowed values, optional arguments left out.

    Two rows mark an argument as optional that their function requires; it stays in.
    """
    ((name, arguments),) = possible_answer.items()
    allowed = {
        argument: [value for value in values if value != OPTIONAL]
        for argument, values in arguments.items()
        if OPTIONAL not in values or argument in required
    }
    return ToolCall(
        name=name,
        arguments={argument: _plain(values[0]) for argument, values in allowed.items() if values},
    )


def _plain(value: Any) -> Any:
    """Return `value` with the first allowed value inside dictionaries, which hold lists of them."""
    if isinstance(value, dict):
        return {key: _plain(allowed[0]) for key, allowed in _allowed(value) if allowed}
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [_plain(item) for item in value]
    return value


def read_bfcl(folder: Path, categories: Sequence[str] = BFCL_SIMPLE) -> list[Chat]:
    """Return the chats of bfcl-eval's data folder, category by category in file order."""
    return [chat for category in categories for chat in _read_category(folder, category)]


def bfcl_files(folder: Path, categories: Sequence[str] = BFCL_SIMPLE) -> list[Path]:
    """Return the files that `read_bfcl` takes."""
    found: list[Path] = []
    for category in categories:
        name = f"BFCL_v4_{category}.json"
        found.append(folder / name)
        if category not in BFCL_NO_CALL:
            found.append(folder / "possible_answer" / name)
    return found


def _read_category(folder: Path, category: str) -> Iterator[Chat]:
    questions, *possible_answers = bfcl_files(folder, (category,))
    if not possible_answers:
        yield from (_chat(row, ()) for row in _lines(questions))
        return
    answers = {row["id"]: row for row in _lines(possible_answers[0])}
    for row in _lines(questions):
        truth = answers.get(row["id"], {}).get("ground_truth")
        if not truth:
            raise DataError(f"{questions}: {row['id']} has no possible answer")
        yield _chat(row, truth)


def _allowed(value: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the allowed values of each key; live rows also hold the value itself, not a list."""
    for key, allowed in value.items():
        values = allowed if isinstance(allowed, list) else [allowed]
        yield key, [] if OPTIONAL in values else values


def _chat(row: Mapping[str, Any], ground_truth: Sequence[Mapping[str, Any]]) -> Chat:
    """Return the chat of a row and the calls that it wants; there may be none."""
    required = {each["name"]: each["parameters"].get("required", ()) for each in row["function"]}
    calls = [
        reference_call(truth, required=required.get(next(iter(truth)), ()))
        for truth in ground_truth
    ]
    answer = with_calls("", calls) if calls else {"role": "assistant", "content": NO_CALL}
    called = [call.name for call in calls] or [each["name"] for each in row["function"]]
    asked = ({"role": m["role"], "content": m["content"]} for m in row["question"][0])
    return Chat(
        id=row["id"],
        messages=(*asked, *number_calls([answer])),
        group=str(called[0]) if called else row["id"],
        functions=tuple(row["function"]),
        possible_answers=tuple(ground_truth),
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise DataError(f"{path}: missing; take the data folder of bfcl-eval 2026.3.23")
    return [row for _, row in json_lines(path)]
