"""A difference of two bills as people read it, with the cause under every change.

`comment(stacks)` has those of a pull request as one Markdown comment: where there is no room for
all, full bills give way first, then whole differences. `compare(bills)` puts stacks side by side: a
row for each figure, a column for each stack.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import zip_longest
from typing import Final

from cost.bill.bill import Bill, render
from cost.chat.unit_costs import Amount
from cost.choose.limits import limits
from cost.diff.diff import (
    CLUSTER_AMOUNTS,
    Difference,
    LineChange,
    SnapshotError,
    diff,
    parse,
    take,
    unit_amounts,
)
from cost.diff.rollout import Rollout, rollout
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import (
    GAP,
    Format,
    Report,
    Table,
    money,
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
from stacks.changes import LostStorage, lost_storage, refused
from stacks.errors import Judged, Problem
from stacks.spec import StackSpec

NO_CHANGE: Final = "No change in cost."
_UNPRICED: Final = "UNPRICED"
_MOST_CAUSES: Final = 6
"""More causes than these are counted, not listed: two unlike stacks differ in every key."""


def render_diff(
    change: Difference, format: Format = Format.TABLE, sides: str = "deployed to declared"
) -> str:
    """The change in the format, ending in a newline; `sides` names those of one stack."""
    if change.is_empty and format in (Format.TABLE, Format.MARKDOWN):
        return f"{NO_CHANGE}\n"
    return render_report(diff_document(change, sides), format)


def diff_document(change: Difference, sides: str = "deployed to declared") -> Report:
    """The change as tables and notes, for the formats that people read."""
    if change.is_empty:
        return Report(
            heading=NO_CHANGE, data=lambda: plain_diff(change), rows=lambda: csv_rows(change)
        )
    before, after = change.before.stack, change.after.stack
    whose = f"of {after}, {sides}" if before == after else f"from {before} to {after}"
    return Report(
        tables=(
            Table(
                title=f"Change {whose} (USD a month without tax; before and after at min_nodes)",
                headings=("Component", "Before", "After", "Change", "At max_nodes"),
                rows=tuple(_line_rows(change)),
            ),
            Table(
                title=f"Change of unit costs {whose} (USD)",
                headings=("Unit", "Before", "After", "Change"),
                rows=tuple(_unit_rows(change)),
            ),
        ),
        notes=tuple(_notes(change)),
        data=lambda: plain_diff(change),
        rows=lambda: csv_rows(change),
    )


def plain_diff(change: Difference) -> dict[str, object]:
    """The change as plain values: money as text, None where it is unknown."""
    hourly = change.after.total.hourly_low_usd - change.before.total.hourly_low_usd
    paths = (
        "before=before.stack after=after.stack is_incomplete "
        "before_is_lower_bound=before.total.is_lower_bound "
        "after_is_lower_bound=after.total.is_lower_bound before_low_usd=before.total.low_usd "
        "after_low_usd=after.total.low_usd change_low_usd change_high_usd"
    )
    of_amount = "unit=label before_usd after_usd change_usd causes"
    return {
        **picked(change, paths, money),
        "change_hourly_low_usd": number(hourly),
        "changes": [_plain_line(line) for line in change.changes],
        "amounts": [picked(amount, of_amount, number) for amount in change.amounts],
        **picked(change, "num_unchanged"),
    }


def _line_rows(change: Difference) -> Iterator[tuple[str, ...]]:
    for line in change.changes:
        yield (
            f"{line.line.section}: {line.line.name}",
            *(
                "-" if side is None else _UNPRICED if usd is None else usd_text(usd)
                for side, usd in ((line.before, line.before_usd), (line.after, line.after_usd))
            ),
            signed_usd(line.change_low_usd),
            signed_usd(line.change_high_usd),
        )
        yield from _cause_rows(line.causes)
    is_bound = change.before.total.is_lower_bound or change.after.total.is_lower_bound
    yield (
        "Total, priced lines only" if is_bound else "Total",
        usd_text(change.before.total.low_usd),
        usd_text(change.after.total.low_usd),
        signed_usd(change.change_low_usd),
        signed_usd(change.change_high_usd),
    )


def _unit_rows(change: Difference) -> Iterator[tuple[str, ...]]:
    of_lines = {cause for line in change.changes for cause in line.causes}
    before, after = change.before, change.after
    for label, was, now in (
        ("$/h at min_nodes", before.total.hourly_low_usd, after.total.hourly_low_usd),
        ("$/h at max_nodes", before.total.hourly_high_usd, after.total.hourly_high_usd),
        ("$/month at min_nodes", before.total.low_usd, after.total.low_usd),
        ("$/month at max_nodes", before.total.high_usd, after.total.high_usd),
    ):
        yield (
            label,
            _small(was, is_lower_bound=before.total.is_lower_bound),
            _small(now, is_lower_bound=after.total.is_lower_bound),
            "unknown" if change.is_incomplete else signed_usd(now - was, small_usd_text),
        )
    for amount in change.amounts:
        is_known = amount.before_usd is not None or amount.after_usd is not None
        yield (
            amount.label,
            _small(amount.before_usd, is_lower_bound=amount.before_is_lower_bound),
            _small(amount.after_usd, is_lower_bound=amount.after_is_lower_bound),
            signed_usd(amount.change_usd, small_usd_text) if is_known else "-",
        )
        # What the lines above have said already is not said again.
        yield from _cause_rows([cause for cause in amount.causes if cause not in of_lines])


def _cause_rows(causes: Sequence[str]) -> Iterator[tuple[str]]:
    for cause in causes[:_MOST_CAUSES]:
        yield (f"{GAP}{GAP}{cause}",)
    if len(causes) > _MOST_CAUSES:
        yield (f"{GAP}{GAP}and {len(causes) - _MOST_CAUSES} more",)


def _notes(change: Difference) -> Iterable[str]:
    for line in change.changes:
        for side, of in ((line.before, change.before), (line.after, change.after)):
            if side is not None and side.unknown is not None:
                yield f"Not priced: {of.stack}: {side.name}: {side.unknown}."
    books = sorted({change.before.book, change.after.book})
    yield f"Lines that stay the same: {change.num_unchanged}. Prices: {', '.join(books)}."


def csv_rows(change: Difference) -> Iterator[Sequence[object]]:
    """The change as rows of plain values, headings first."""
    yield ("resource", "before_usd", "after_usd", "change_low_usd", "change_high_usd", "causes")
    for line in change.changes:
        *values, causes = _plain_line(line).values()
        yield (*values, "; ".join(line.causes) if causes else None)
    ends = (change.before.total.low_usd, change.after.total.low_usd)
    totals = (*ends, change.change_low_usd, change.change_high_usd)
    yield ("Total", *map(money, totals), None)
    for amount in change.amounts:
        amounts = (amount.before_usd, amount.after_usd, amount.change_usd)
        causes = "; ".join(amount.causes)
        yield (amount.label, *map(number, amounts), None, causes or None)


def _plain_line(line: LineChange) -> dict[str, object]:
    amounts = "before_usd after_usd change_low_usd change_high_usd causes"
    return {"resource": f"{line.line.section}: {line.line.name}", **picked(line, amounts, money)}


def _small(usd: Decimal | None, *, is_lower_bound: bool) -> str:
    if usd is None:
        return _NOT_KNOWN
    return f"{'at least ' if is_lower_bound else ''}{small_usd_text(usd)}"


FIRST_DEPLOYMENT: Final = "First deployment: no earlier bill to compare with."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Judged):
    """The way from the deployed bill to the declared one."""

    difference: Difference | None
    """None where there is no earlier bill."""
    reason: str
    """Why there is none; empty where there is one."""
    losses: tuple[LostStorage, ...]
    rollout: Rollout = field(default_factory=lambda: Rollout(steps=()))
    problems: tuple[Problem, ...] = ()
    """What cannot or should not follow the deployment."""

    def render(self, format: Format = Format.TABLE) -> str:
        """The change as text, data that would be lost first, ending in a newline."""
        if self.difference is None:
            return f"{self.reason}\n"
        warnings = "".join(f"!!! {loss}\n" for loss in self.losses)
        return warnings + render_diff(self.difference, format) + self.rollout.render()


def change(bill: Bill, outputs: Mapping[str, object]) -> Change:
    """The change from what the stack's outputs say was deployed; no outputs, no deployment."""
    if not outputs:
        return Change(difference=None, reason=FIRST_DEPLOYMENT, losses=())
    deployed = outputs.get("cost")
    try:
        before = parse(deployed.get("snapshot") if isinstance(deployed, Mapping) else None)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    except SnapshotError as error:
        reason = f"No earlier bill to compare with: that of the deployment cannot be read: {error}."
        return Change(difference=None, reason=reason, losses=())
    after = take(bill)
    return Change(
        difference=diff(before, after),
        reason="",
        losses=lost_storage(before.values, after.values),
        rollout=rollout(before.values, after.values, bill.spec, bill.estimate),
        problems=refused(bill.spec.name, before.values, after.values),
    )


SIDES: Final = "declared there to declared here"
"""Of a stack of another checkout, where nothing need be deployed."""
MARK: Final = "<!-- soperator cost -->"
"""First line: by it the workflow finds the comment that it wrote before."""
MAX_CHARACTERS: Final = 60_000
"""GitHub refuses comments of more than 65,536 characters (docs.github.com, 2026-11)."""


@dataclass(frozen=True, kw_only=True)
class StackChange:
    """One stack before and after; without slots, which a cached property cannot have."""

    name: str
    before: Bill | None
    """None: the stack is new, or what it was cannot be read."""
    after: Bill | None
    """None: the stack is gone."""
    problem: str | None = None
    """Why there is no bill before, where the stack was there."""

    @cached_property
    def difference(self) -> Difference | None:
        """What changes, where there are two bills."""
        if self.before is None or self.after is None:
            return None
        return diff(take(self.before), take(self.after))

    @property
    def state(self) -> str:
        """What the stack is where there is no difference, in a sentence."""
        if self.problem is not None:
            return f"The bill before cannot be computed: {self.problem}"
        if self.after is None:
            return "The stack is removed: nothing of it is paid once it is destroyed."
        return FIRST_DEPLOYMENT

    @property
    def is_unchanged(self) -> bool:
        """Whether both bills are there and nothing costs more or less."""
        found = self.difference
        return found is not None and found.is_empty


def comment(stacks: Sequence[StackChange]) -> str:
    """The comment, at most MAX_CHARACTERS long, ending in a newline."""
    changed = [each for each in stacks if not each.is_unchanged]
    same = [each.name for each in stacks if each.is_unchanged]
    head = [MARK, "## Cost of this change", "", *_summary(changed, same)]
    sections = [_section(each) for each in changed]
    bills = [
        ""
        if each.after is None
        else f"<details><summary>Full bill of {each.after.spec.name}</summary>\n\n"
        f"{render(each.after, Format.MARKDOWN)}\n</details>"
        for each in changed
    ]
    steps = [(len(sections), num_bills) for num_bills in range(len(bills), -1, -1)]
    steps += [(num_sections, 0) for num_sections in range(len(sections) - 1, -1, -1)]
    texts = (_joined(head, sections[:shown], bills[:full], len(sections)) for shown, full in steps)
    return next(text for text in texts if len(text) <= MAX_CHARACTERS)


def _joined(head: list[str], sections: list[str], bills: list[str], num_changed: int) -> str:
    """The head, as many sections and full bills as are given, and what is left out."""
    parts = ["\n".join(head)]
    for index, section in enumerate(sections):
        parts += [section, *bills[index : index + 1]]
    left_out = [
        f"{count} {what}"
        for count, what in (
            (num_changed - len(sections), "differences"),
            (num_changed - len(bills), "full bills"),
        )
        if count
    ]
    if left_out:
        parts.append(
            f"_Left out, for want of room: {' and '.join(left_out)}. "
            "Print them with `soperator cost --stack NAME`._"
        )
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _summary(changed: Sequence[StackChange], same: Sequence[str]) -> Iterator[str]:
    if changed:
        yield "| Stack | Before, USD a month | After | Change | At max_nodes | Policy |"
        yield "| :-- | --: | --: | --: | --: | :-- |"
        yield from (_summary_row(each) for each in changed)
        yield ""
    if same:
        yield f"No change in cost: {', '.join(same)}."
    yield "Amounts are USD without tax at min_nodes, 730 hours a month."


def _summary_row(each: StackChange) -> str:
    low, high = Decimal(0), Decimal(0)
    if each.after is not None:
        low, high = each.after.estimate.total.low_usd, each.after.estimate.total.high_usd
    if each.before is not None:
        low -= each.before.estimate.total.low_usd
        high -= each.before.estimate.total.high_usd
    found = each.difference
    is_unknown = found is not None and found.is_incomplete
    before = "first deployment" if each.problem is None else "cannot be read"
    cells = (
        f"`{each.name}`",
        before if each.before is None else _total(each.before),
        "removed" if each.after is None else _total(each.after),
        *(("unknown", "unknown") if is_unknown else (signed_usd(low), signed_usd(high))),
        _policy(each.after),
    )
    return f"| {' | '.join(cells)} |"


def _policy(bill: Bill | None) -> str:
    if bill is None:
        return "-"
    if bill.errors:
        return f"**{len(bill.errors)} refused**"
    kept = [limit.is_kept for limit in limits(bill)]
    if broken := kept.count(False):
        return f"**{broken} broken**"
    return "not known" if None in kept else "kept" if kept else "none set"


def _section(each: StackChange) -> str:
    lines = [f"### `{each.name}`", ""]
    if each.after is not None:
        lines += [f"> **{_quoted(str(problem))}**" for problem in each.after.errors]
        lines += [f"> {_quoted(str(problem))}" for problem in each.after.warnings]
        lines += [""] if each.after.problems else []
    found = each.difference
    changes = _quoted(each.state)
    if found is not None:
        changes = render_report(diff_document(found, SIDES), Format.MARKDOWN)
    return "\n".join([*lines, changes])


def _total(bill: Bill) -> str:
    total = bill.estimate.total
    return f"{total.least}{usd_text(total.low_usd)}"


def _quoted(text: str) -> str:
    """One line that no Markdown of its own breaks out of."""
    return " ".join(text.split()).replace("<", "&lt;")


_SCHEMA_VERSION: Final = 1
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
    # A preset a row: many in one cell would push the table over its width.
    workers = zip_longest(*(_workers(bill.spec) for bill in bills), fillvalue="")
    return (
        _text_row("Region", bills, lambda bill: bill.spec.nebius.region),
        *(
            Row(name="Workers" if place == 1 else f"Workers ({place})", cells=cells)
            for place, cells in enumerate(workers, 1)
        ),
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
        notes=tuple(_compare_notes(bills)),
        data=lambda: _plain_rows(names, rows),
        rows=lambda: _csv_columns(names, rows),
        title=f"Cost of {', '.join(names)}",
    )
    return render_report(report, format)


def _compare_notes(bills: Sequence[Bill]) -> Iterator[str]:
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
        for amount in unit_amounts(bill):
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
    ends = [(each.low_usd / share, each.high_usd / share) for each in sums]
    texts = [
        f"{each.least}{span(*map(usd_text, end))}" for each, end in zip(sums, ends, strict=True)
    ]
    return Row(
        name=name,
        cells=tuple(text if each else _NONE for text, each in zip(texts, totals, strict=True)),
        low_usd=tuple(low for low, _ in ends),
        high_usd=tuple(high for _, high in ends),
        is_lower_bound=tuple(each.is_lower_bound for each in sums),
    )


def _amount_rows(bills: Sequence[Bill]) -> Iterator[Row]:
    totals = [bill.estimate.total for bill in bills]
    amounts = [
        {amount.label: amount for amount in (*unit_amounts(bill), *bill.amounts)} for bill in bills
    ]
    for label in dict.fromkeys(label for each in amounts for label in each):
        found = [each.get(label) for each in amounts]
        bounds = tuple(
            amount is not None and amount.name in CLUSTER_AMOUNTS and total.is_lower_bound
            for amount, total in zip(found, totals, strict=True)
        )
        usd = tuple(None if amount is None else amount.usd for amount in found)
        cells = tuple(map(_amount, found, bounds))
        yield Row(name=label, cells=cells, low_usd=usd, high_usd=usd, is_lower_bound=bounds)


def _amount(amount: Amount | None, is_lower_bound: bool) -> str:
    return _NONE if amount is None else _small(amount.usd, is_lower_bound=is_lower_bound)


def _difference(row: Row) -> str:
    if not row.low_usd:
        return "" if row.cells[0] == row.cells[1] else "differs"
    first, second = row.low_usd
    if first is None or second is None or any(row.is_lower_bound):
        return _NOT_KNOWN
    return signed_usd(first - second, small_usd_text)


def _workers(spec: StackSpec) -> list[str]:
    low, high = Counter[str](), Counter[str]()
    for worker in spec.nodes.workers:
        low[worker.preset] += worker.min_nodes
        high[worker.preset] += worker.max_nodes
    return [f"{span(str(low[name]), str(high[name]))} x {name}" for name in high]


def _gpus(spec: StackSpec) -> str:
    counts = Counter[str]()
    for worker in spec.nodes.workers:
        if worker.gpus:
            counts[worker.platform.removeprefix("gpu-")] += worker.max_nodes * worker.gpus
    return ", ".join(f"{count} {platform}" for platform, count in counts.items()) or "none"


def _book(bill: Bill) -> str:
    day = bill.estimate.price_date
    return f"{bill.estimate.book.name}, {'none' if day is None else day.isoformat()}"


def _plain_rows(names: Sequence[str], rows: Sequence[Row]) -> dict[str, object]:
    found = [picked(row, "name text=cells low_usd high_usd is_lower_bound", number) for row in rows]
    return {
        "schema_version": _SCHEMA_VERSION,
        "stacks": names,
        # A row of text has none of the last three.
        "rows": [{name: value or None for name, value in row.items()} for row in found],
    }


def _csv_columns(names: Sequence[str], rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """A column a stack for text, two for money."""
    ends = [f"{name}_{end}_usd" for name in names for end in ("low", "high")]
    yield ("figure", *names, *ends)
    for row in rows:
        pairs = zip(row.low_usd, row.high_usd, strict=True)
        money = [number(usd) for pair in pairs for usd in pair] or [None] * len(ends)
        yield (row.name, *row.cells, *money)
