"""What changes on the bill from one estimate to another: diff(before, after), render_diff(...).

Lines are the same when section and name are; a change to or from an unknown price is unknown.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass
from decimal import Decimal

from cost.components import CostComponent, Section
from cost.estimate import Estimate
from cost.layout import UNKNOWN, Document, Format, Table, lay_out, usd_text
from cost.price_book import HOURS_PER_MONTH
from cost.summary import money


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """One line of two bills; a side that has no such line costs nothing there."""

    name: str
    before: CostComponent | None
    after: CostComponent | None

    @property
    def before_usd(self) -> Decimal | None:
        """US dollars a month at min_nodes before; None when unknown."""
        return Decimal(0) if self.before is None else self.before.monthly_low_usd

    @property
    def after_usd(self) -> Decimal | None:
        """US dollars a month at min_nodes after; None when unknown."""
        return Decimal(0) if self.after is None else self.after.monthly_low_usd

    @property
    def change_low_usd(self) -> Decimal | None:
        """US dollars a month more at min_nodes; None when a side is unknown."""
        return _minus(self.after_usd, self.before_usd)

    @property
    def change_high_usd(self) -> Decimal | None:
        """US dollars a month more at max_nodes; None when a side is unknown."""
        before = Decimal(0) if self.before is None else self.before.monthly_high_usd
        after = Decimal(0) if self.after is None else self.after.monthly_high_usd
        return _minus(after, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateDiff:
    """Two bills side by side."""

    before: Estimate
    after: Estimate
    changes: tuple[LineChange, ...]
    """Lines whose cost or price changes, is new or is gone, by section."""
    num_unchanged: int

    @property
    def is_incomplete(self) -> bool:
        """Whether a line without a price keeps the change of the total from being exact."""
        return self.before.is_lower_bound or self.after.is_lower_bound


def diff(before: Estimate, after: Estimate) -> EstimateDiff:
    """What changes from one bill to the other."""
    old = {(line.section, line.name): line for line in before.components}
    new = {(line.section, line.name): line for line in after.components}
    keys = [*new, *(key for key in old if key not in new)]
    keys.sort(key=lambda key: list(Section).index(key[0]))
    changes = tuple(
        LineChange(name=f"{key[0]}: {key[1]}", before=old.get(key), after=new.get(key))
        for key in keys
        if _figures(old.get(key)) != _figures(new.get(key))
    )
    return EstimateDiff(
        before=before, after=after, changes=changes, num_unchanged=len(keys) - len(changes)
    )


def render_diff(change: EstimateDiff, format: Format = Format.TABLE) -> str:
    """The change in the format, ending in a newline."""
    if format is Format.JSON:
        return json.dumps(_plain(change), indent=2) + "\n"
    if format is Format.CSV:
        return _csv(change)
    return lay_out(_document(change), format)


def _document(change: EstimateDiff) -> Document:
    names = f"from {change.before.stack_name} to {change.after.stack_name}"
    low, high = _total(change)
    total = (
        "Total, known prices only" if change.is_incomplete else "Total",
        usd_text(change.before.monthly_low_usd),
        usd_text(change.after.monthly_low_usd),
        _signed(low),
        _signed(high),
    )
    rows = tuple(
        (
            line.name,
            "-" if line.before is None else _amount(line.before_usd),
            "-" if line.after is None else _amount(line.after_usd),
            _signed(line.change_low_usd),
            _signed(line.change_high_usd),
        )
        for line in change.changes
    )
    notes = [
        f"Not priced: {bill.stack_name}: {line.name}: {line.unknown}."
        for bill in (change.before, change.after)
        for line in bill.unpriced
    ]
    books = sorted({change.before.book_name, change.after.book_name})
    notes.append(f"Lines that stay the same: {change.num_unchanged}. Prices: {', '.join(books)}.")
    return Document(
        heading=None,
        tables=(
            Table(
                title=f"Monthly cost {names} at min_nodes (USD without tax, "
                f"{HOURS_PER_MONTH} hours)",
                headings=("Resource", "Before", "After", "Change", "At max_nodes"),
                rows=(*rows, total),
                num_text_columns=1,
            ),
        ),
        notes=tuple(notes),
    )


def _csv(change: EstimateDiff) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("resource", "before_usd", "after_usd", "change_low_usd", "change_high_usd"))
    for line in change.changes:
        writer.writerow(["" if value is None else value for value in _plain_line(line).values()])
    low, high = _total(change)
    before, after = change.before.monthly_low_usd, change.after.monthly_low_usd
    writer.writerow(("Total", *(money(usd) for usd in (before, after, low, high))))
    return stream.getvalue()


def _plain(change: EstimateDiff) -> dict[str, object]:
    low, high = _total(change)
    return {
        "before": change.before.stack_name,
        "after": change.after.stack_name,
        "is_incomplete": change.is_incomplete,
        "change_low_usd": money(low),
        "change_high_usd": money(high),
        "changes": [_plain_line(line) for line in change.changes],
        "num_unchanged": change.num_unchanged,
    }


def _plain_line(line: LineChange) -> dict[str, str | None]:
    return {
        "resource": line.name,
        "before_usd": _plain_usd(line.before_usd),
        "after_usd": _plain_usd(line.after_usd),
        "change_low_usd": _plain_usd(line.change_low_usd),
        "change_high_usd": _plain_usd(line.change_high_usd),
    }


def _figures(line: CostComponent | None) -> tuple[Decimal | None, ...] | None:
    if line is None:
        return None
    rate = None if line.rate is None else line.rate.usd
    return rate, line.monthly_low_usd, line.monthly_high_usd


def _total(change: EstimateDiff) -> tuple[Decimal, Decimal]:
    return (
        change.after.monthly_low_usd - change.before.monthly_low_usd,
        change.after.monthly_high_usd - change.before.monthly_high_usd,
    )


def _minus(after: Decimal | None, before: Decimal | None) -> Decimal | None:
    return None if after is None or before is None else after - before


def _amount(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else usd_text(usd)


def _signed(usd: Decimal | None) -> str:
    if usd is None:
        return UNKNOWN
    return f"{'-' if usd < 0 else '+'}{usd_text(abs(usd))}"


def _plain_usd(usd: Decimal | None) -> str | None:
    return None if usd is None else money(usd)
