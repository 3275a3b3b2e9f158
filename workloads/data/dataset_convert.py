"""Raw rows to chats, one JSON object a line; rows that cannot be read go to a file of rejects.

Owns the stream: one row in memory.
Usage: python -m workloads.data.dataset_convert rows.parquet chats.jsonl [--format glaive]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, get_args

from workloads.common import tool_calls
from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.tool_calls import UNREADABLE
from workloads.data import calls
from workloads.data.chats import ENDINGS, BadRow, Chat, check_messages, group_of, kind_of, raw_rows
from workloads.data.manifest import Step, command, files_of
from workloads.recipes.data import Format, SourceConfig, from_options

_ROW_CHARS = 2000
_REPORTED = 5


class Rejects:
    """Writes rejects, counts them and says the first few."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self.num = 0
        self._first: str | None = None

    def add(self, at: str, reason: str, row: Any) -> None:
        """Write one; a row that is no text is written as JSON, and only its beginning."""
        self.num += 1
        reason = reason.removeprefix(f"{at}: ")
        self._first = self._first or f"{at}: {reason}"
        if self.num <= _REPORTED:
            log(f"rejected {at}: {reason}")
        entry = {"at": at, "reason": reason, "row": _text(row)[:_ROW_CHARS]}
        self._sink.write(json.dumps(entry, ensure_ascii=False).encode(errors="replace") + b"\n")

    def told(self) -> str:
        """Return how many there are and why the first is one, for an error."""
        return f"{self.num} rejected" + (f"; the first: {self._first}" if self._first else "")


def rejects_path(output: Path) -> Path:
    """Return where the rejects of `output` lie: beside it, rows.jsonl -> rows.rejects.jsonl."""
    return output.with_suffix(".rejects.jsonl")


def reason_of(error: BaseException) -> str:
    """Return why a row is none; the class too where Python has said it."""
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"


def _text(row: Any) -> str:
    if isinstance(row, str):
        return row
    try:
        return json.dumps(row, default=str)
    except UNREADABLE as error:
        return f"<{type(row).__name__} that cannot be written: {reason_of(error)}>"


_TURN = re.compile(r"(?:^|\n)[ \t]*(USER|ASSISTANT|FUNCTION RESPONSE):")
_ROLES = {"USER": "user", "ASSISTANT": "assistant", "FUNCTION RESPONSE": "tool"}
_END = "<|endoftext|>"
_OFFER = " with access to the following functions. Use them if required -"
"""What comes in front of a row's functions, which the chat template offers in words of its own."""


def read_glaive(row: Mapping[str, Any], *, at: str) -> tuple[list[dict[str, Any]], calls.Functions]:
    """Return the messages of the row's `system` and `chat`, and the functions on offer."""
    chat = row.get("chat")
    if not isinstance(chat, str):
        raise DataError(f"{at}: column chat is {type(chat).__name__}, expected Glaive's text")
    system, functions = _functions(str(row.get("system") or "").strip().removeprefix("SYSTEM:"))
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    before, *parts = _TURN.split(chat)
    if before.strip():
        raise DataError(f"{at}: chat does not start with USER: but with {before.strip()[:60]!r}")
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        content = text.replace(_END, "").strip()
        if name == "ASSISTANT" and tool_calls.GLAIVE_OPEN in content:
            messages.append(_with_calls(content, at=at))
        else:
            messages.append({"role": _ROLES[name], "content": content})
    return calls.number_calls(messages), functions


def _with_calls(content: str, *, at: str) -> dict[str, Any]:
    """Return an assistant's turn with its calls."""
    before = content.partition(tool_calls.GLAIVE_OPEN)[0].strip()
    made = tool_calls.parse_calls(content)
    if not made:
        raise DataError(f"{at}: function call cannot be read: {content[:200]!r}")
    return calls.with_calls(before, made)


def _functions(system: str) -> tuple[str, calls.Functions]:
    """Return the text without the functions that it lists as JSON objects, and the functions."""
    decoder = json.JSONDecoder(strict=False)
    found: list[Mapping[str, Any]] = []
    position = system.find("{")
    while position >= 0:
        try:
            value, end = decoder.raw_decode(system, position)
        except (ValueError, RecursionError):
            break
        if isinstance(value, dict) and isinstance(value.get("name"), str):
            found.append(value)
            system, end = f"{system[:position].rstrip()}\n{system[end:].lstrip()}", position
        position = system.find("{", end)
    return (system.replace(_OFFER, ".") if found else system).strip(), found


def from_row(row: Any, format: str, *, at: str, keep: Sequence[str] = ()) -> Chat:
    """Return the chat in one raw row of `format`; `keep` names columns to carry along."""
    if not isinstance(row, Mapping):
        raise DataError(f"{at}: is {type(row).__name__}, expected an object with columns")
    functions: calls.Functions = ()
    if format == "messages":
        messages, functions = calls.read_openai(row, at=at)
    elif format == "system_user_assistant":
        messages = _columns(row, at=at)
    else:
        messages, functions = read_glaive(row, at=at)
    missing = [name for name in keep if name not in row]
    if missing:
        raise DataError(f"{at}: has no column {', '.join(missing)} (data.source.keep)")
    checked = _stripped(check_messages(messages, at=at))
    return Chat(
        id=str(row["id"]) if row.get("id") is not None else at,
        messages=checked,
        group=group_of(checked),
        functions=tuple(functions),
        # Dates and decimals of parquet become text.
        columns=json.loads(json.dumps({name: row[name] for name in keep}, default=str)),
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


def _stripped(messages: Sequence[calls.Message]) -> tuple[calls.Message, ...]:
    """Return `messages` with the assistant's turns bare of white space around them.

    A newline in front would share a token with the one that ends the generation prompt.
    """
    return tuple(
        {**message, "content": message["content"].strip()}
        if message["role"] == "assistant"
        else message
        for message in messages
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """How many rows became chats."""

    num_chats: int
    num_rejected: int

    def counts(self) -> dict[str, int]:
        """Return the numbers for a manifest and a run record."""
        return {"num_chats": self.num_chats, "num_rejected": self.num_rejected}


def convert(source: SourceConfig, path: Path, chats: BinaryIO, rejected: BinaryIO) -> Converted:
    """Write the chats of `path` and its rejects, in the rows' order; no usable row is an error."""
    num_chats, rejects = 0, Rejects(rejected)
    for at, row in islice(_rows(source, path), source.limit):
        try:
            if isinstance(row, BadRow):
                raise DataError(row.reason)
            chat = (
                row
                if isinstance(row, Chat)
                else from_row(row, source.format, at=at, keep=source.keep)
            )
            chats.write(chat.to_line())
            num_chats += 1
        except (DataError, *UNREADABLE) as error:
            rejects.add(at, reason_of(error), row.text if isinstance(row, BadRow) else row)
    if not num_chats:
        raise DataError(f"{path}: no usable row, {rejects.told()}")
    return Converted(num_chats=num_chats, num_rejected=rejects.num)


def _rows(source: SourceConfig, path: Path) -> Iterator[tuple[str, Any]]:
    if source.kind == "bfcl":
        return ((chat.id, chat) for chat in calls.read_bfcl(path, source.categories))
    return raw_rows(source.kind, path)


def source_files(source: SourceConfig, path: Path) -> list[Path]:
    """Return the files that `convert` reads, for a manifest."""
    if source.kind == "bfcl":
        return calls.files(path, source.categories)
    return files_of(path, ENDINGS[source.kind])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.dataset_convert",
        description="Raw rows to chats as JSON lines; rejects go to <output>.rejects.jsonl",
    )
    parser.add_argument("source", type=Path, help="a file, or a folder of files of one kind")
    parser.add_argument("output", type=Path, help="JSON lines to write")
    parser.add_argument("--kind", choices=[*ENDINGS, "bfcl"], help="default: by the ending")
    parser.add_argument("--format", choices=get_args(Format), default="messages")
    parser.add_argument("--keep", nargs="*", action="extend", default=[], metavar="COLUMN")
    parser.add_argument("--limit", type=int, help="first rows only")
    options = parser.parse_args(arguments)
    return command(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    source = from_options(
        SourceConfig,
        kind=options.kind or kind_of(options.source),
        path=str(options.source),
        format=options.format,
        keep=tuple(options.keep),
        limit=options.limit,
    )
    rejects = rejects_path(options.output)
    step = Step(
        name="convert",
        path=options.output.with_name(f"{options.output.name}.manifest.json"),
        config=source,
        inputs=source_files(source, options.source),
    )
    if step.is_current():
        return
    with new_file(options.output) as chats, new_file(rejects) as rejected:
        done = convert(source, options.source, chats, rejected)
    step.finish([options.output, rejects], done.counts())
    log(f"{options.output}: {done.num_chats} chats, {done.num_rejected} rows in {rejects.name}")


if __name__ == "__main__":
    sys.exit(main())
