"""The one row format of prepared data: a chat, with what is needed to score its answer.

Owns the fields, what a valid conversation is, and the JSON line. Raw formats: formats.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workloads.common.exit_codes import DataError

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One conversation."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    """Each with `role` and `content`."""
    group: str
    """Chats of one group never end up on both sides of a split."""
    functions: tuple[Mapping[str, Any], ...] = ()
    """Function descriptions in BFCL's form, for scoring."""
    possible_answers: tuple[Mapping[str, Any], ...] = ()
    """Of each wanted call: function name -> argument -> allowed values, in BFCL's form."""
    columns: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Raw columns that the recipe keeps, for stratified splits."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        answers = [dict(answer) for answer in self.possible_answers]
        return {
            "id": self.id,
            "group": self.group,
            "messages": [dict(message) for message in self.messages],
            "functions": [dict(function) for function in self.functions],
            # One call is written without a list, as most rows want one.
            "possible_answer": answers[0] if len(answers) == 1 else answers or None,
            "columns": dict(self.columns),
        }

    def to_line(self) -> bytes:
        """Return the row as one line of UTF-8."""
        text = json.dumps(self.to_json(), ensure_ascii=False, default=str)
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError as error:  # half of a surrogate pair, as \\ud83d in JSON
            at = text[max(0, error.start - 20) : error.start]
            raise DataError(f"text after {at!r} is not Unicode: {error.reason}") from error


def check_messages(messages: Any, *, at: str) -> tuple[Mapping[str, str], ...]:
    """Return `messages` in our form: known roles, text content, an assistant turn, not as first."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise DataError(f"{at}: 'messages' is {_short(messages)}, expected a list of messages")
    checked: list[Mapping[str, str]] = []
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise DataError(f"{at}: messages[{index}] is {_short(message)}, expected a mapping")
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise DataError(
                f"{at}: messages[{index}].role is {_short(role)}, allowed: {', '.join(ROLES)}"
            )
        if not isinstance(content, str) or not content.strip():
            raise DataError(f"{at}: messages[{index}].content is {_short(content)}, expected text")
        checked.append({"role": role, "content": content})
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


def group_of(messages: tuple[Mapping[str, str], ...]) -> str:
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
