"""The one row format of prepared data, a chat; raw rows of parquet, JSON, JSON lines and CSV."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO

from workloads.common.exit_codes import DataError
from workloads.data.manifest import files_of

ROLES = ("system", "user", "assistant", "tool")
Message = Mapping[str, Any]
"""`role`, `content`, `tool_calls` as OpenAI has them, `arguments` as an object, `tool_call_id`."""


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
        num_columns = _num_columns(rows, file)
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


def _num_columns(rows: csv.DictReader[str], file: Path) -> int:
    try:
        return len(rows.fieldnames or ())
    except csv.Error as error:
        raise DataError(f"{file}:1: the header cannot be read as CSV: {error}") from error
