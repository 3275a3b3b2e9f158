"""Stacks side by side: compare(bills) -> a row for each figure, a column for each stack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from typing import Final

from cost.bill.bill import Bill
from cost.chat.unit_costs import Amount
from cost.diff.snapshot import CLUSTER_AMOUNTS, unit_amounts
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import (
    Format,
    Report,
    Table,
    number,
    picked,
    render_report,
    signed_usd,
    small_usd_text,
    span,
    usd_text,
)
from cost.resources.estimate import Total, total_of
from cost.resources.lines import Section
from stacks.spec import StackSpec

SCHEMA_VERSION: Final = 1
_NOT_KNOWN: Final = "NOT KNOWN"
_NONE: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure of every stack; text where it is no amount of money."""

    name: str
    cells: tuple[str, ...]
    low_usd: tuple[Decimal | None, ...] = ()
    """At min_nodes; empty in a row of text. None where it is not known."""
    high_usd: tuple[Decimal | None, ...] = ()
    is_lower_bound: tuple[bool, ...] = ()
    """Whether an unpriced line is missing in it; empty in a row of text."""


def compare(bills: Sequence[Bill]) -> tuple[Row, ...]:
    """The figures of the bills beside each other, in the order of a bill."""
    totals = [bill.estimate.total for bill in bills]
    return (
        _text_row("Region", bills, lambda bill: bill.spec.nebius.region),
        *_worker_rows(bills),
        _text_row("GPUs", bills, lambda bill: _gpus(bill.spec)),
        *_section_rows(bills),
        *(
            _money_row(f"Total {name}", totals, share)
            for name, share in (("$/month", 1), ("$/h", HOURS_PER_MONTH))
        ),
        *_amount_rows(bills),
        _text_row("Prices", bills, _book),
    )


def render_compare(bills: Sequence[Bill], format: Format = Format.TABLE) -> str:
    """The stacks side by side in the format, ending in a newline."""
    rows, names = compare(bills), tuple(bill.spec.name for bill in bills)
    is_pair = len(bills) == 2
    report = Report(
        tables=(
            Table(
                title=f"{' beside '.join(names)} (USD without tax, 730 hours a month)",
                headings=("Figure", *names, *(("Difference",) if is_pair else ())),
                rows=tuple(
                    (row.name, *row.cells, *((_difference(row),) if is_pair else ()))
                    for row in rows
                ),
            ),
        ),
        notes=tuple(_notes(bills)),
        data=lambda: _plain(names, rows),
        rows=lambda: _csv_rows(names, rows),
        title=f"Cost of {', '.join(names)}",
    )
    return render_report(report, format)


def _notes(bills: Sequence[Bill]) -> Iterator[str]:
    yield (
        "Two amounts are those at min_nodes and at max_nodes; the difference is at min_nodes, "
        "first stack less second."
        if len(bills) == 2
        else "Two amounts are those at min_nodes and at max_nodes."
    )
    for bill in bills:
        missing = ", ".join(line.name for line in bill.estimate.unpriced)
        if missing:
            yield f"{bill.spec.name}: at least; not priced: {missing}."
        for amount in unit_amounts(bill.unit_costs):
            if amount.usd is not None:
                yield f"{bill.spec.name}: {amount.label}: {amount.basis}."
        if bill.spec.bill_heading is not None:
            yield f"{bill.spec.name}: {bill.spec.bill_heading}"


def _text_row(name: str, bills: Sequence[Bill], text: Callable[[Bill], str]) -> Row:
    return Row(name=name, cells=tuple(text(bill) for bill in bills))


def _section_rows(bills: Sequence[Bill]) -> Iterator[Row]:
    """What each section costs a month, where any stack has it."""
    components = [bill.estimate.components for bill in bills]
    for section in Section:
        lines = [[line for line in each if line.section is section] for each in components]
        if any(lines):
            totals = [total_of(each) if each else None for each in lines]
            yield _money_row(str(section), totals, 1)


def _money_row(name: str, totals: Sequence[Total | None], share: Decimal | int) -> Row:
    zero = Total(low_usd=Decimal(0), high_usd=Decimal(0), is_lower_bound=False)
    sums = [total or zero for total in totals]
    low, high = [each.low_usd / share for each in sums], [each.high_usd / share for each in sums]
    bounds = tuple(each.is_lower_bound for each in sums)
    texts = [
        f"{'at least ' if bound else ''}{span(usd_text(least), usd_text(most), '..')}"
        for least, most, bound in zip(low, high, bounds, strict=True)
    ]
    return Row(
        name=name,
        cells=tuple(text if each else _NONE for text, each in zip(texts, totals, strict=True)),
        low_usd=tuple(low),
        high_usd=tuple(high),
        is_lower_bound=bounds,
    )


def _amount_rows(bills: Sequence[Bill]) -> Iterator[Row]:
    amounts = [
        {amount.label: amount for amount in (*unit_amounts(bill.unit_costs), *bill.amounts)}
        for bill in bills
    ]
    for label in dict.fromkeys(label for each in amounts for label in each):
        found = [each.get(label) for each in amounts]
        bounds = tuple(
            amount is not None and amount.name in CLUSTER_AMOUNTS and bill.estimate.is_lower_bound
            for amount, bill in zip(found, bills, strict=True)
        )
        usd = tuple(None if amount is None else amount.usd for amount in found)
        cells = tuple(map(_amount, found, bounds))
        yield Row(name=label, cells=cells, low_usd=usd, high_usd=usd, is_lower_bound=bounds)


def _amount(amount: Amount | None, is_lower_bound: bool) -> str:
    if amount is None:
        return _NONE
    if amount.usd is None:
        return _NOT_KNOWN
    return f"{'at least ' if is_lower_bound else ''}{small_usd_text(amount.usd)}"


def _difference(row: Row) -> str:
    if not row.low_usd:
        return "" if row.cells[0] == row.cells[1] else "differs"
    first, second = row.low_usd
    if first is None or second is None or any(row.is_lower_bound):
        return _NOT_KNOWN
    return signed_usd(first - second, small_usd_text)


def _worker_rows(bills: Sequence[Bill]) -> Iterator[Row]:
    """Worker nodes, a preset a row: many in one cell would push the table over its width."""
    columns = [_workers(bill.spec) for bill in bills]
    for place, cells in enumerate(zip_longest(*columns, fillvalue="")):
        yield Row(name="Workers" if place == 0 else f"Workers ({place + 1})", cells=cells)


def _workers(spec: StackSpec) -> list[str]:
    low, high = Counter[str](), Counter[str]()
    for worker in spec.nodes.workers:
        low[worker.preset] += worker.min_nodes
        high[worker.preset] += worker.max_nodes
    return [f"{span(str(low[name]), str(high[name]), '..')} x {name}" for name in high]


def _gpus(spec: StackSpec) -> str:
    counts = Counter[str]()
    for worker in spec.nodes.workers:
        if worker.gpus:
            counts[worker.platform.removeprefix("gpu-")] += worker.max_nodes * worker.gpus
    return ", ".join(f"{count} {platform}" for platform, count in counts.items()) or "none"


def _book(bill: Bill) -> str:
    day = bill.estimate.price_date
    return f"{bill.estimate.book.name}, {'none' if day is None else day.isoformat()}"


def _plain(names: Sequence[str], rows: Sequence[Row]) -> dict[str, object]:
    found = [picked(row, "name text=cells low_usd high_usd is_lower_bound", number) for row in rows]
    return {
        "schema_version": SCHEMA_VERSION,
        "stacks": names,
        # A row of text has none of the last three.
        "rows": [{name: value or None for name, value in row.items()} for row in found],
    }


def _csv_rows(names: Sequence[str], rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """A column a stack for text, two for money."""
    ends = [f"{name}_{end}_usd" for name in names for end in ("low", "high")]
    yield ("figure", *names, *ends)
    for row in rows:
        pairs = zip(row.low_usd, row.high_usd, strict=True)
        money = [number(usd) for pair in pairs for usd in pair] or [None] * len(ends)
        yield (row.name, *row.cells, *money)
