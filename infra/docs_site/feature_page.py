"""The acceptance table docs/features.tsv as a page."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

from infra.docs_site.markdown import cell


def feature_page(table: Path) -> str:
    """Every feature of the seed documents with its state and what shows it, as Markdown."""
    with table.open(encoding="ascii", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    states = Counter(row["state"] for row in rows)
    counted = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    lines = [
        "# Features",
        "",
        (
            f"{len(rows)} features of the five source documents: {counted}. One works when the "
            "named tests pass; made from `docs/features.tsv`."
        ),
        "",
        "| id | feature | state | where | shown by |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        where = " ".join(f"`{path}`" for path in row["where"].split())
        tests = " ".join(f"`{test}`" for test in row["test"].split())
        note = f" {cell(row['note'])}" if row["note"] else ""
        lines.append(
            f"| {row['id']} | {cell(row['feature'])}{note} | {row['state']} | {where} | {tests} |"
        )
    return "\n".join(lines) + "\n"
