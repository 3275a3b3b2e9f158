"""Rows that could not be used: one JSON line each, {"at": "file:line", "reason", "row"}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.tool_calls import UNREADABLE

__all__ = ["Rejects", "reason_of", "rejects_path"]

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
