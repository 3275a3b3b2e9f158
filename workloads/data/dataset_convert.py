"""Raw rows to chats, one JSON object a line; rows that cannot be read go to a file of rejects.

Owns how rows of parquet, JSON, JSON lines and CSV are read, and the stream: one row in memory.
Usage: python -m workloads.data.dataset_convert rows.parquet chats.jsonl [--format glaive]
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO, get_args

from workloads.common import tool_calls
from workloads.common.atomic import new_file
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.tool_calls import UNREADABLE
from workloads.data.chats import (
    Chat,
    Functions,
    Message,
    bfcl_files,
    check_messages,
    group_of,
    number_calls,
    read_bfcl,
    read_openai,
    with_calls,
)
from workloads.data.manifest import Step, command, files_of
from workloads.recipes.data import Format, SourceConfig, from_options

_ROW_CHARS = 2000
_REPORTED = 5
ENDINGS = {"parquet": ".parquet", "jsonl": ".jsonl", "json": ".json", "csv": ".csv"}
_READ_CHARS = 1 << 20
_PARQUET_ROWS = 256
_NO_VALUE = (ValueError, OverflowError)
"""Text that is not UTF-8, a time that Python has no date for."""
_NEVER_CLOSED = "unexpected end of data"
"""csv's own words at the end of a file inside quotes; all rows behind them would be one reject."""
_KEEP_BYTES = "surrogateescape"
"""What is not UTF-8 stays recognisable, so that its row alone is refused when it is written."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is not what its file's kind asks for."""

    text: str
    reason: str


def kind_of(path: Path) -> str:
    """Return the kind of the file, or of the files in the folder, by their endings."""
    found = sorted(
        kind
        for kind, ending in ENDINGS.items()
        if (path.suffix == ending if path.is_file() else files_of(path, ending))
    )
    if len(found) != 1:
        got = f"holds {' and '.join(found)} files" if found else "has none of the known endings"
        raise DataError(
            f"{path}: {got}; expected one kind of {', '.join(ENDINGS.values())}; name the kind"
        )
    return found[0]


def raw_rows(kind: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield ("file:row number", row) of every row below `path`, files in the order of their names.

    The number is the line in JSON lines, the line where the row ends in CSV, else the row's number.
    """
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    files = files_of(path, ENDINGS[kind])
    if not files:
        raise DataError(f"{path}: has no {ENDINGS[kind]} file")
    read = {"parquet": _parquet, "jsonl": _jsonl, "json": _json, "csv": _csv}[kind]
    for file in files:
        name = file.name if path.is_file() else str(file.relative_to(path))
        for number, row in read(file):
            yield f"{name}:{number}", row


def _jsonl(file: Path) -> Iterator[tuple[int, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                text = line.decode("utf-8", errors="replace").rstrip("\r\n")
                yield number, BadRow(text, f"is not JSON: {error}")


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
                for row in _batch_rows(batch):
                    number += 1
                    yield number, row
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file}: cannot be read as parquet: {error}") from error


def _batch_rows(batch: Any) -> Iterator[Any]:
    """Yield the rows of a batch; one by one where a value has no Python form, to name the row."""
    try:
        yield from batch.to_pylist()
        return
    except _NO_VALUE:
        pass  # nothing was yielded yet: to_pylist makes all rows first
    for index in range(batch.num_rows):
        try:
            row = batch.slice(index, 1).to_pylist()[0]
        except _NO_VALUE as error:
            row = BadRow("", f"has a value that cannot be read: {error}")
        yield row


def _json(file: Path) -> Iterator[tuple[int, Any]]:
    """Rows of one JSON array; only what is not decoded yet stays in memory."""
    decoder = json.JSONDecoder()
    number = 0
    with file.open(encoding="utf-8", errors=_KEEP_BYTES) as source:
        buffer = _skip(source, "").lstrip("\ufeff")
        if not buffer.startswith("["):
            raise DataError(
                f"{file}: a JSON file holds one array of rows, this one starts with "
                f"{buffer[:1]!r}; name the kind jsonl for one object a line"
            )
        buffer = _skip(source, buffer[1:])
        while not buffer.startswith("]"):
            number += 1
            row, buffer = _next_value(decoder, source, buffer, at=f"{file}:{number}")
            yield number, row
            buffer = _skip(source, buffer)
            if buffer.startswith(","):
                buffer = _skip(source, buffer[1:])
            elif not buffer.startswith("]"):
                raise DataError(f"{file}:{number}: is not followed by a comma or a bracket")


def _next_value(
    decoder: json.JSONDecoder, source: TextIO, buffer: str, *, at: str
) -> tuple[Any, str]:
    wanted = _READ_CHARS
    while True:
        try:
            row, end = decoder.raw_decode(buffer)
            if end < len(buffer):  # a number at the end of the buffer may go on
                return row, buffer[end:]
            reason: Exception | str = "the file ends inside the array"
        except RecursionError as error:
            raise DataError(f"{at}: is not JSON that can be read: {error}") from error
        except ValueError as error:
            reason = error
        # Twice as much each time, so that one very long row is not decoded again and again.
        more = source.read(wanted)
        if not more:
            raise DataError(f"{at}: is not JSON: {reason}")
        buffer, wanted = buffer + more, 2 * wanted


def _skip(source: TextIO, buffer: str) -> str:
    """Return `buffer` without leading white space, filled where nothing is left."""
    while not (buffer := buffer.lstrip()):
        buffer = source.read(_READ_CHARS)
        if not buffer:
            return ""
    return buffer


def _csv(file: Path) -> Iterator[tuple[int, Any]]:
    with _long_fields(), file.open(encoding="utf-8-sig", errors=_KEEP_BYTES, newline="") as source:
        lines: list[str] = []  # of the row that is read now
        rows = csv.DictReader(_remembered(source, lines), strict=True)
        try:
            num_columns = len(rows.fieldnames or ())
        except csv.Error as error:
            raise DataError(f"{file}:1: the header cannot be read as CSV: {error}") from error
        while True:
            lines.clear()
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                number = rows.reader.line_num
                first = number - len(lines) + 1
                if str(error) == _NEVER_CLOSED:
                    raise DataError(
                        f"{file}:{first}: a quote of this row is never closed; write quotes inside "
                        "a quoted field twice"
                    ) from error
                where = "" if first == number else f"lines {first} to {number}: "
                yield number, BadRow("".join(lines).rstrip("\r\n"), f"{where}is not CSV: {error}")
                continue
            if None in row or None in row.values():
                text = ",".join(str(value) for value in row.values())
                reason = f"does not have the {num_columns} fields of the header"
                yield rows.line_num, BadRow(text, reason)
            else:
                yield rows.line_num, row


@contextmanager
def _long_fields() -> Iterator[None]:
    """Lets a field be of any length; the limit is one of the process, so it is put back."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _remembered(source: TextIO, lines: list[str]) -> Iterator[str]:
    for line in source:
        lines.append(line)
        yield line


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


def read_glaive(row: Mapping[str, Any], *, at: str) -> tuple[list[dict[str, Any]], Functions]:
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
            calls = tool_calls.parse_calls(content)
            if not calls:
                raise DataError(f"{at}: function call cannot be read: {content[:200]!r}")
            before = content.partition(tool_calls.GLAIVE_OPEN)[0].strip()
            messages.append(with_calls(before, calls))
        else:
            messages.append({"role": _ROLES[name], "content": content})
    return number_calls(messages), functions


def _functions(system: str) -> tuple[str, Functions]:
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
    functions: Functions = ()
    if format == "messages":
        messages, functions = read_openai(row, at=at)
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


def _stripped(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return `messages` with the assistant's turns bare of white space around them.

    A newline in front would share a token with the one that ends the generation prompt.
    """
    return tuple(
        {**message, "content": message["content"].strip()}
        if message["role"] == "assistant"
        else message
        for message in messages
    )


def convert(
    source: SourceConfig, path: Path, chats: BinaryIO, rejected: BinaryIO
) -> dict[str, int]:
    """Write the chats of `path` and its rejects, in the rows' order; no usable row is an error.

    Return num_chats and num_rejected.
    """
    num_chats, rejects = 0, Rejects(rejected)
    for at, row in islice(_rows(source, path), source.limit):
        try:
            if isinstance(row, BadRow):
                raise DataError(row.reason)
            form, keep = source.format, source.keep
            chat = row if isinstance(row, Chat) else from_row(row, form, at=at, keep=keep)
            chats.write(chat.to_line())
            num_chats += 1
        except (DataError, *UNREADABLE) as error:
            rejects.add(at, reason_of(error), row.text if isinstance(row, BadRow) else row)
    if not num_chats:
        raise DataError(f"{path}: no usable row, {rejects.told()}")
    return {"num_chats": num_chats, "num_rejected": rejects.num}


def _rows(source: SourceConfig, path: Path) -> Iterator[tuple[str, Any]]:
    if source.kind == "bfcl":
        return ((chat.id, chat) for chat in read_bfcl(path, source.categories))
    return raw_rows(source.kind, path)


def source_files(source: SourceConfig, path: Path) -> list[Path]:
    """Return the files that `convert` reads, for a manifest."""
    if source.kind == "bfcl":
        return bfcl_files(path, source.categories)
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
    return command(lambda: _run(parser.parse_args(arguments)))


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
        counts = convert(source, options.source, chats, rejected)
    step.finish([options.output, rejects], counts)
    num_chats, num_rejected = counts.values()
    log(f"{options.output}: {num_chats} chats, {num_rejected} rows in {rejects.name}")


if __name__ == "__main__":
    sys.exit(main())
