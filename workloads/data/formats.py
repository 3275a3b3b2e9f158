"""One raw row -> one chat, for each format that recipes name.

Owns the names of the formats and the columns each needs. Tool calls of every format become text of
one form (workloads/common/tool_calls.py). BFCL's folder of files is read in bfcl.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.data import glaive, openai_calls
from workloads.data.chats import Chat, check_messages, group_of

FORMATS = ("messages", "system_user_assistant", "glaive")


def from_row(row: Any, format: str, *, at: str, keep: Sequence[str] = ()) -> Chat:
    """Return the chat in one raw row of `format`; `keep` names columns to carry along."""
    if not isinstance(row, Mapping):
        raise DataError(f"{at}: is {type(row).__name__}, expected an object with columns")
    functions: Sequence[Mapping[str, Any]] = ()
    if format == "messages":
        messages, functions = openai_calls.read(row, at=at)
    elif format == "system_user_assistant":
        messages = _columns(row, at=at)
    else:
        messages, functions = glaive.read(row, at=at)
    missing = [name for name in keep if name not in row]
    if missing:
        raise DataError(f"{at}: has no column {', '.join(missing)} (data.source.keep)")
    checked = _stripped(check_messages(messages, at=at))
    return Chat(
        id=str(row["id"]) if row.get("id") is not None else at,
        messages=checked,
        group=group_of(checked),
        functions=tuple(functions),
        columns={name: _plain(row[name]) for name in keep},
    )


def _columns(row: Mapping[str, Any], *, at: str) -> list[dict[str, Any]]:
    missing = [name for name in ("user", "assistant") if not row.get(name)]
    if missing:
        raise DataError(
            f"{at}: column {', '.join(missing)} is missing or empty; "
            "the format system_user_assistant needs user and assistant"
        )
    return [
        {"role": role, "content": row[role]}
        for role in ("system", "user", "assistant")
        if row.get(role)
    ]


def _stripped(messages: Sequence[Mapping[str, str]]) -> tuple[Mapping[str, str], ...]:
    """Return `messages` with the assistant's turns bare of white space around them.

    A newline in front would share a token with the one that ends the generation prompt.
    """
    return tuple(
        {**message, "content": message["content"].strip()}
        if message["role"] == "assistant"
        else message
        for message in messages
    )


def _plain(value: Any) -> Any:
    """Return `value` as JSON can hold it: dates and decimals of parquet become text."""
    return json.loads(json.dumps(value, default=str))
