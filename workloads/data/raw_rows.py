"""Rows of parquet, JSON, JSON lines and CSV files, one at a time, each with its file and line.

Owns what a row is in each kind of file. Holds one row, or one batch of parquet rows, in memory.
A row that cannot be read comes as a BadRow; a file that cannot be read is a DataError.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from workloads.common.exit_codes import DataError
from workloads.data.files import files_of

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
                yield number, BadRow(_text(line), f"is not JSON: {error}")


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


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")
