"""The one row format of prepared data: a chat, with what is needed to score its answer.

Owns the fields, their JSON lines, and the readers of raw jsonl and parquet rows in the three
declared formats. BFCL has its own file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.common import atomic, tool_calls
from workloads.common.exit_codes import DataError
from workloads.data.config import SourceConfig

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
    possible_answer: Mapping[str, Any] | None = None
    """Function name -> argument -> allowed values, in BFCL's form."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {
            "id": self.id,
            "group": self.group,
            "messages": [dict(message) for message in self.messages],
            "functions": [dict(function) for function in self.functions],
            "possible_answer": dict(self.possible_answer) if self.possible_answer else None,
        }


def check_messages(messages: Any, *, at: str) -> tuple[Mapping[str, str], ...]:
    """Return `messages` in our form: known roles, text content, at least one assistant turn."""
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{at}: 'messages' is not a list of messages")
    checked: list[Mapping[str, str]] = []
    for index, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise DataError(
                f"{at}: messages[{index}].role is {role!r}, allowed: {', '.join(ROLES)}"
            )
        calls = message.get("tool_calls")
        if calls:
            content = "\n".join([content or "", *map(_openai_call, calls)]).strip()
        if not isinstance(content, str) or not content:
            raise DataError(f"{at}: messages[{index}].content is {content!r}, expected text")
        checked.append({"role": role, "content": content})
    if all(message["role"] != "assistant" for message in checked):
        raise DataError(f"{at}: no assistant turn, so there is nothing to learn")
    return tuple(checked)


def _openai_call(call: Mapping[str, Any]) -> str:
    parsed = tool_calls.parse_calls(json.dumps(call.get("function", call)))
    if not parsed:
        raise DataError(f"tool call cannot be read: {json.dumps(call)[:200]}")
    return tool_calls.render(parsed[0])


def from_row(row: Mapping[str, Any], format: str, *, at: str) -> Chat:
    """Return the chat in one raw row of the declared `format`."""
    if format == "messages":
        messages: Any = row.get("messages")
        messages = list(messages) if messages is not None else None
    elif format == "system_user_assistant":
        messages = [
            {"role": role, "content": row[role]}
            for role in ("system", "user", "assistant")
            if row.get(role)
        ]
    else:
        messages = _glaive_messages(row, at=at)
    checked = check_messages(messages, at=at)
    first_user = next((m["content"] for m in checked if m["role"] == "user"), checked[0]["content"])
    return Chat(id=str(row.get("id", at)), messages=checked, group=" ".join(first_user.split()))


_GLAIVE_TURN = re.compile(r"(?:^|\n)\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_GLAIVE_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}


def _glaive_messages(row: Mapping[str, Any], *, at: str) -> list[dict[str, str]]:
    """Split Glaive's `system` and `chat` texts into messages; calls are rewritten to our form."""
    messages: list[dict[str, str]] = []
    system = str(row.get("system") or "").removeprefix("SYSTEM:").strip()
    if system:
        messages.append({"role": "system", "content": system})
    parts = _GLAIVE_TURN.split(str(row.get("chat") or ""))
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        content = text.replace("<|endoftext|>", "").strip()
        if name == "ASSISTANT" and tool_calls.GLAIVE_OPEN in content:
            before = content.partition(tool_calls.GLAIVE_OPEN)[0].strip()
            calls = tool_calls.parse_calls(content)
            if not calls:
                raise DataError(f"{at}: function call cannot be read: {content[:200]}")
            content = "\n".join([before, *map(tool_calls.render, calls)]).strip()
        messages.append({"role": _GLAIVE_ROLES[name], "content": content})
    return messages


def read_source(source: SourceConfig, path: Path) -> tuple[list[Chat], list[dict[str, Any]]]:
    """Return the chats of `path` and the rejected rows, each with its place and reason."""
    if source.kind == "bfcl":
        from workloads.data import bfcl

        return bfcl.read(path, limit=source.limit), []
    rows = _jsonl_rows(path) if source.kind == "jsonl" else _parquet_rows(path)
    chats: list[Chat] = []
    rejects: list[dict[str, Any]] = []
    for at, row in rows:
        if source.limit is not None and len(chats) + len(rejects) >= source.limit:
            break
        try:
            if isinstance(row, str):
                row = json.loads(row)
            chats.append(from_row(row, source.format, at=at))
        except (DataError, ValueError, AttributeError) as error:
            rejects.append({"at": at, "reason": str(error)})
    return chats, rejects


def _files(path: Path, ending: str) -> list[Path]:
    files = sorted(path.rglob(f"*{ending}")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: has no {ending} file")
    return files


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    for file in _files(path, ".jsonl"):
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"{file.name}:{number}", line


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in _files(path, ".parquet"):
        number = 0
        try:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file.name}:{number}", row
        except pa.ArrowInvalid as error:
            raise DataError(f"{file}: is not a parquet file: {error}") from error


def write_jsonl(path: Path, chats: Iterable[Chat]) -> None:
    """Write one JSON object per line."""
    lines = (json.dumps(chat.to_json(), ensure_ascii=False) for chat in chats)
    atomic.write_text(path, "".join(f"{line}\n" for line in lines))


def read_jsonl(path: Path) -> list[Chat]:
    """Return the chats of a file that write_jsonl wrote."""
    chats: list[Chat] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                row["messages"], row["functions"] = tuple(row["messages"]), tuple(row["functions"])
                chats.append(Chat(**row))
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}:{number}: is not a prepared chat: {error}") from error
    return chats
