"""Rows of parquet, JSON, JSON lines and CSV files, one at a time, each with its file and line.

Owns what a row is in each kind of file. Holds one row, or one batch of parquet rows, in memory.
A row that cannot be read comes as a BadRow; a file that cannot be read is a DataError.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from workloads.common.exit_codes import DataError
from workloads.data.files import files_of

ENDINGS = {"parquet": ".parquet", "jsonl": ".jsonl", "json": ".json", "csv": ".csv"}
_READ_CHARS = 1 << 20
_PARQUET_ROWS = 256


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
            except ValueError as error:
                yield number, BadRow(_text(line), f"is not JSON: {error}")


def _parquet(file: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=_PARQUET_ROWS, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{file}: cannot be read as parquet: {error}") from error


def _json(file: Path) -> Iterator[tuple[int, Any]]:
    """Rows of one JSON array; only what is not decoded yet stays in memory."""
    decoder = json.JSONDecoder()
    number = 0
    with file.open(encoding="utf-8") as source:
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
    csv.field_size_limit(sys.maxsize)
    with file.open(encoding="utf-8-sig", newline="") as source:
        rows = csv.DictReader(source, strict=True)
        try:
            for row in rows:
                if None in row or None in row.values():
                    num_columns = len(rows.fieldnames or ())
                    text = ",".join(str(value) for value in row.values())
                    yield (
                        rows.line_num,
                        BadRow(text, f"does not have the {num_columns} fields of the header"),
                    )
                else:
                    yield rows.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{file}:{rows.line_num}: cannot be read as CSV: {error}") from error


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace").rstrip("\r\n")
