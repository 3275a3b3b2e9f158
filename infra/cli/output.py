"""What commands print: aligned columns for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from cost.visible import visible


class Format(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(value, indent=2, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Left-aligned columns, two spaces apart."""
    cells = [list(headers), *([_text(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        line = "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True))
        print(line.rstrip())


def note(text: str) -> None:
    """Lines about what is going on, on standard error."""
    print("\n".join(map(visible, text.split("\n"))), file=sys.stderr, flush=True)


def _text(value: object) -> str:
    return "-" if value is None else visible(str(value))
