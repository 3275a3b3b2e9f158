"""A comparison as lines for the terminal and as one self-contained HTML page with its graphs."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

from infra.accept import plots
from infra.accept.compare import Comparison, Row

HEADERS: Final = ("nodes", "ranks", "workload", "first", "second", "overhead", "95 %", "outcome")
_FOLDER = Path(__file__).parent
_STYLES = (_FOLDER.parent / "report" / "page.css", _FOLDER / "page.css")


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """A row for each pair, in words."""
    return [
        (
            str(row.nodes),
            str(row.ranks),
            row.workload,
            f"{row.first:,.0f}",
            f"{row.second:,.0f}",
            f"{row.overhead_percent:+.2f} %",
            _interval(row),
            row.outcome.replace("_", " "),
        )
        for row in found.rows
    ]


def notes(found: Comparison) -> list[str]:
    """Who is compared, what is to be known of it, and the verdict as the last line."""
    lines = [f"first: {_run(found.first)}", f"second: {_run(found.second)}"]
    lines += list(dict.fromkeys(row.reason for row in found.rows if row.reason))
    if any(row.overhead_percent < 0 for row in found.rows):
        lines.append("a negative overhead: the second run is faster")
    if found.first.hardware != found.second.hardware:
        lines.append("the two ran on different hardware: the overhead is not that of the launcher")
    if not found.rows:
        lines.append(
            "no point has the same nodes, ranks, model, batch and sequence in both: nothing to "
            "compare"
        )
    blind = sum(row.low_percent is None for row in found.rows)
    how = f", {blind} of {len(found.rows)} pairs without an interval" if blind else ""
    outcome = found.outcome.replace("_", " ")
    lines.append(f"{outcome}: overhead under {found.limit_percent:g} %{how}")
    return lines


def plain(found: Comparison) -> dict[str, Any]:
    """The comparison as plain values."""
    return {
        "first": _run(found.first),
        "second": _run(found.second),
        "limit_percent": found.limit_percent,
        "outcome": found.outcome,
        "rows": [{name: getattr(row, name) for name in Row.__slots__} for row in found.rows],
        "notes": notes(found),
    }


def html(found: Comparison) -> str:
    """The page; every text of a file is escaped."""
    style = "".join(path.read_text(encoding="utf-8") for path in _STYLES)
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADERS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows(found)
    )
    graphs = "".join(f'<section class="figures">{graph}</section>' for graph in _graphs(found))
    said = "".join(f"<p>{escape(line)}</p>" for line in notes(found))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Two runs compared</title><style>{style}</style></head><body><main>"
        f"<header><h1>Two runs compared</h1>{said}</header>"
        f'<section><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody>'
        f"</table></div></section>{graphs}</main></body></html>\n"
    )


def _graphs(found: Comparison) -> list[str]:
    graphs: list[str] = []
    for workload in dict.fromkeys(row.workload for row in found.rows):
        mine = [row for row in found.rows if row.workload == workload]
        base = mine[0]
        lines = {
            f"first: {found.first.launcher}": [(float(row.nodes), row.first) for row in mine],
            f"second: {found.second.launcher}": [(float(row.nodes), row.second) for row in mine],
            "ideal": [(float(row.nodes), base.first / base.nodes * row.nodes) for row in mine],
        }
        if len({row.nodes for row in mine}) > 1:
            graphs.append(plots.compared(workload, lines))
    return graphs


def _run(run: Any) -> str:
    return f"{run.name} ({run.launcher}, {run.hardware})"


def _interval(row: Row) -> str:
    if row.low_percent is None or row.high_percent is None:
        return "-"
    return f"{row.low_percent:+.2f} to {row.high_percent:+.2f}"
