"""The tables that people write about the Terraform recipe and the seeds: read_table(path).

Owns their form: tab-separated, a heading line, as many cells in every row. What they say is data in
docs/; the pages that show them are in pages.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Column names and rows of one file."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def column(self, name: str) -> tuple[str, ...]:
        """Every cell of one column."""
        index = self.columns.index(name)
        return tuple(row[index] for row in self.rows)


def read_table(path: Path) -> Table:
    """The table of the file; ValueError names a row with too few or too many cells."""
    columns, *rows = (
        tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines()
    )
    for number, row in enumerate(rows, 2):
        if len(row) != len(columns):
            raise ValueError(
                f"{path.name}:{number}: {len(row)} cells; give {len(columns)}: {', '.join(columns)}"
            )
    return Table(columns=columns, rows=tuple(rows))
