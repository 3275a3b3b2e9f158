"""Tables and notes as text, markdown, HTML or CSV; money and numbers as people read them.

Also an explanation of figures: formula, inputs with sources, arithmetic. Of a traced number
(cost/traced.py) all three are those of its own computation.
"""

from __future__ import annotations

import io
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final, cast, overload

from cost.traced import number as traced_number
from cost.traced import trace_of
from stacks.errors import Problem, visible
from stacks.files import fill

WIDTH: Final = 108
_FOLDER: Final = Path(__file__).parent
UNKNOWN: Final = "unknown"
GAP: Final = "  "
_MIN_NAME: Final = 8
_CENT: Final = Decimal("0.01")
_MILLIONTH: Final = Decimal("0.000001")


class Format(StrEnum):
    """What `soperator cost --format` accepts."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"
    CSV = "csv"
    HTML = "html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Headings and rows of text; `num_text_columns` columns are left-aligned, the rest right.

    A row of one cell spans all columns: why the row above it is as it is.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int = 1
    bad_rows: frozenset[int] = frozenset()
    """Rows that break a promise, by index; HTML gives them the class `bad`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Tables and the notes under them; what only one format shows is made when it is asked for."""

    heading: str | None = None
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    draw_figures: Callable[[], tuple[str, ...]] = tuple
    """Charts as inline SVG (charts.py), of HTML."""
    data: Callable[[], object] = dict
    """The values of JSON."""
    rows: Callable[[], Iterable[Sequence[object]]] | None = None
    """The rows of CSV, headings first; None: those of the tables."""
    title: str = ""
    """Of HTML as a page of its own; without one it is a part of another page."""


def render_report(report: Report, format: Format) -> str:
    """The report in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(report.data(), indent=2) + "\n"
    if format is Format.CSV:
        of_tables = (row for each in report.tables for row in (each.headings, *each.rows))
        return csv_text(of_tables if report.rows is None else report.rows())
    if format is Format.HTML:
        return page(report.title, [_html(report)]) if report.title else _html(report)
    return _text(report) if format is Format.TABLE else _markdown(report)


def headed(rows: Sequence[Mapping[str, object]]) -> list[tuple[object, ...]]:
    """Rows of CSV from those of JSON, under their keys."""
    return [tuple(rows[0]), *(tuple(row.values()) for row in rows)] if rows else []


def _text(report: Report) -> str:
    lines: list[str] = []
    if report.heading is not None:
        lines += [*textwrap.wrap(report.heading, WIDTH), ""]
    for table in report.tables:
        lines += [*textwrap.wrap(table.title, WIDTH), *_text_table(table), ""]
    for note in report.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(visible(line.rstrip()) for line in lines) + "\n"


def _text_table(table: Table) -> list[str]:
    rows = [row for row in (table.headings, *table.rows) if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    # Only names are of any length: the first column gives way so that every line fits.
    room = WIDTH - sum(widths[1:]) - len(GAP) * (len(widths) - 1)
    widths[0] = min(widths[0], max(room, _MIN_NAME))
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) - 1))
    lines = [rule, *_text_row(table.headings, widths, table.num_text_columns), rule]
    for row in table.rows:
        lines += (
            _wrapped(row[0], WIDTH)
            if len(row) == 1
            else _text_row(row, widths, table.num_text_columns)
        )
    return [*lines, rule]


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """The rows as lines of columns; `right` are the columns of numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        GAP.join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _text_row(row: tuple[str, ...], widths: Sequence[int], num_text_columns: int) -> list[str]:
    """One line, and more where the first cell is too long for its column."""
    first, more = row[0], list[str]()
    if len(first) > widths[0]:
        first, *more = _wrapped(first, widths[0])
    cells = GAP.join(
        f"{cell:<{width}}" if column < num_text_columns else f"{cell:>{width}}"
        for column, (cell, width) in enumerate(zip((first, *row[1:]), widths, strict=True))
    )
    return [cells, *more]


def _wrapped(cell: str, width: int) -> list[str]:
    indent = cell[: len(cell) - len(cell.lstrip())]
    return textwrap.wrap(cell.strip(), width, initial_indent=indent, subsequent_indent=indent + GAP)


def _markdown(report: Report) -> str:
    lines: list[str] = []
    if report.heading is not None:
        lines += [f"> {report.heading}", ""]
    for table in report.tables:
        marks = [
            ":--" if column < table.num_text_columns else "--:"
            for column in range(len(table.headings))
        ]
        rows = [(*row, *[""] * (len(table.headings) - len(row))) for row in table.rows]
        cells = [[cell.strip().replace("|", "\\|") for cell in row] for row in rows]
        lines += [
            f"**{table.title}**",
            "",
            *(f"| {' | '.join(row)} |" for row in (table.headings, marks, *cells)),
            "",
        ]
    lines += [f"- {note}" for note in report.notes]
    return "\n".join(map(visible, lines)) + "\n"


def _html(report: Report) -> str:
    template = _FOLDER / "report.html.j2"
    return fill(template, report=report, figures=report.draw_figures()) + "\n"


def span(low: str, high: str, to: str = "..") -> str:
    """One text when both ends look the same, else both."""
    return low if low == high else f"{low}{to}{high}"


def usd_text(usd: Decimal | None) -> str:
    """Dollars and cents."""
    return UNKNOWN if usd is None else f"${rounded(usd, _CENT):,f}"


def small_usd_text(usd: Decimal | None) -> str:
    """Cents from a dollar up, three significant digits below, so that small costs stay visible."""
    if usd is None or usd >= 1 or usd == 0:
        return usd_text(usd)
    step = Decimal(1).scaleb(usd.adjusted() - 2)
    return f"${rounded(usd, step):f}"


def signed_usd(usd: Decimal | None, text: Callable[[Decimal], str] = usd_text) -> str:
    """A difference of dollars with its sign."""
    return UNKNOWN if usd is None else f"{'-' if usd < 0 else '+'}{text(abs(usd))}"


def money(usd: Decimal | None) -> str | None:
    """Dollars and cents for programs, rounded half up; None stays None."""
    return None if usd is None else f"{rounded(usd, _CENT):f}"


def exact_money(usd: Decimal | None) -> str | None:
    """Dollars to the millionth for programs; None stays None."""
    return None if usd is None else f"{rounded(usd, _MILLIONTH):f}"


@overload
def number(value: Decimal) -> str: ...
@overload
def number(value: Decimal | None) -> str | None: ...
def number(value: Decimal | None) -> str | None:
    """The number with at most six digits behind the point, no zeros at the end; None stays None."""
    if value is None:
        return None
    text = f"{rounded(value, _MILLIONTH):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


# With the usual 28 digits, Decimal.quantize raises where an amount has more than it can keep.
_WIDE: Final = Context(prec=200, rounding=ROUND_HALF_UP)


def rounded(value: Decimal, step: Decimal) -> Decimal:
    """The multiple of the step that is nearest, the larger one of two."""
    return value.quantize(step, context=_WIDE)


def short(value: Decimal) -> str:
    """The number with three significant digits, whole from 100 up, in plain notation."""
    if not value:
        return "0"
    places = max(0, 2 - value.adjusted())
    text = f"{rounded(value, Decimal(1).scaleb(-places)):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def picked(
    item: object, paths: str, usd: Callable[[Decimal], str | None] = exact_money
) -> dict[str, object]:
    """Attributes of the item as JSON values: `path.to.it` under its last name, or `name=path`.

    None on the way is None. Decimals are text, US dollars (by the name) as `usd` writes them.
    """
    found: dict[str, object] = {}
    for each in paths.split():
        name, _, path = each.rpartition("=")
        value = item
        for step in path.split("."):
            value = None if value is None else getattr(value, step)
        name = name or path.rpartition(".")[2]
        found[name] = _plain(value, usd if "usd" in name else number)
    return found


def _plain(value: object, text: Callable[[Decimal], str | None]) -> object:
    """The value for JSON; what JSON does not know is in words."""
    if isinstance(value, Decimal):
        return text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, tuple):
        return [_plain(each, text) for each in cast("tuple[object, ...]", value)]
    return value if value is None or isinstance(value, int | str) else str(value)


# Spreadsheets take the fullwidth forms for the same.
_FORMULA_STARTS: Final = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """The rows as CSV that a spreadsheet opens without running anything; None is an empty cell.

    A text that a spreadsheet would take for a formula gets an apostrophe in front, as OWASP advises
    (owasp.org/www-community/attacks/CSV_Injection, 2026-11); numbers stay numbers.
    """
    # Only CSV needs it: a preview has 100 ms for all cost work.
    import csv

    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for row in rows:
        texts = ["" if value is None else str(value) for value in row]
        writer.writerow(
            f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
            for text in texts
        )
    return stream.getvalue()


def page(title: str, fragments: Iterable[str], problems: Sequence[Problem] = ()) -> str:
    """The problems and fragments of HTML as one self-contained document under the title.

    No script and no request: its own content security policy forbids both.
    """
    style = (_FOLDER / "page.css").read_text(encoding="ascii")
    template = _FOLDER / "page.html.j2"
    text = fill(template, title=title, fragments=fragments, problems=problems, style=style)
    return f"{text}\n"


@dataclass(frozen=True, slots=True)
class Input:
    """One number of a formula and where it comes from."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the bill with an expression that gives it, digit for digit."""

    name: str
    unit: str
    """Such as `USD a month`."""
    value: Decimal

    @property
    def expression(self) -> str:
        """Decimals, + - * / and parentheses; decimals of 28 digits give `value` exactly."""
        return trace_of(self.value).expression


def known_figures(*rows: tuple[str, str, Decimal | None]) -> tuple[Figure, ...]:
    """Those whose value, behind name and unit, is known."""
    return tuple(Figure(name, unit, value) for name, unit, value in rows if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Everything that one item of the bill rests on."""

    item: str
    title: str
    figures: tuple[Figure, ...] = ()
    notes: tuple[str, ...] = ()
    words: str = ""
    """The formula, where it is another than that of the first figure."""
    others: tuple[Input, ...] = ()
    """Inputs that no expression shows, or not whole."""

    @property
    def formula(self) -> str:
        """In words."""
        return self.words or trace_of(self.figures[0].value).formula

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Every number with a name, once; two values of it, at min_nodes and at max_nodes."""
        found: dict[tuple[str, str], list[str]] = {}
        for figure in self.figures:
            for each in trace_of(figure.value).inputs:
                values = found.setdefault((each.name, each.source), [])
                if (text := traced_number(each.value)) not in values:
                    values.append(text)
        for each in self.others:
            found.pop((each.name, each.source), None)
        shown = (Input(name, "..".join(each), source) for (name, source), each in found.items())
        return (*self.others, *shown)


def render_explanation(found: Explanation, format: Format = Format.TABLE) -> str:
    """The explanation in the format, ending in a newline."""
    title = f"{found.title} ({found.item})"
    table = Table(
        title=title,
        headings=("Input", "Value"),
        rows=tuple(
            row
            for each in found.inputs
            for row in ((each.name, each.value), (f"{GAP}{GAP}{each.source}",))
        ),
    )
    report = Report(
        heading=None if table.rows else title,
        tables=(table,) if table.rows else (),
        notes=(
            f"Formula: {found.formula}.",
            *(
                f"{each.name and f'{each.name}: '}{each.expression} = {traced_number(each.value)} "
                f"{each.unit}"
                for each in found.figures
            ),
            *found.notes,
        ),
        data=lambda: {
            **picked(found, "item title formula"),
            "inputs": [asdict(each) for each in found.inputs],
            "figures": [
                {**picked(each, "name unit expression"), "value": traced_number(each.value)}
                for each in found.figures
            ],
            "notes": found.notes,
        },
        rows=lambda: [
            ("kind", "name", "value", "source"),
            *(("input", each.name, each.value, each.source) for each in found.inputs),
            *(
                (each.unit, each.name, traced_number(each.value), each.expression)
                for each in found.figures
            ),
        ],
    )
    return render_report(report, format)
