"""Rows as CSV that a spreadsheet opens without running anything: csv_text(rows).

Owns quoting. A text that a spreadsheet would take for a formula gets an apostrophe in front, as
OWASP advises (owasp.org/www-community/attacks/CSV_Injection, 2026-11); numbers stay numbers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Final

# Spreadsheets take the fullwidth forms for the same.
_FORMULA_STARTS: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """The rows as CSV text; None is an empty cell."""
    # Only CSV needs it: a preview has 100 ms for all cost work.
    import csv

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return stream.getvalue()


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text
