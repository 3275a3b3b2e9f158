"""What a pull request does to the bills of its stacks, as one Markdown comment: comment(stacks).

Where there is no room for all of it, full bills give way first, then whole differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Final

from cost.bill.bill import Bill
from cost.bill.table import render
from cost.choose.limits import limits
from cost.diff.diff import Difference, diff
from cost.diff.snapshot import take
from cost.diff.table import diff_document
from cost.report.layout import Format, lay_out, signed_usd, usd_text

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
        return "First deployment: no earlier bill to compare with."

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
    bills = ["" if each.after is None else _full_bill(each.after) for each in changed]
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
        low, high = each.after.estimate.monthly_low_usd, each.after.estimate.monthly_high_usd
    if each.before is not None:
        low -= each.before.estimate.monthly_low_usd
        high -= each.before.estimate.monthly_high_usd
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
    return "kept" if limits(bill.inputs) else "none set"


def _section(each: StackChange) -> str:
    lines = [f"### `{each.name}`", ""]
    if each.after is not None:
        lines += [f"> **{_quoted(str(problem))}**" for problem in each.after.errors]
        lines += [f"> {_quoted(str(problem))}" for problem in each.after.warnings]
        lines += [""] if each.after.problems else []
    found = each.difference
    changes = _quoted(each.state)
    if found is not None:
        changes = lay_out(diff_document(found, SIDES), Format.MARKDOWN)
    return "\n".join([*lines, changes])


def _full_bill(bill: Bill) -> str:
    summary = f"<details><summary>Full bill of {bill.spec.name}</summary>"
    return f"{summary}\n\n{render(bill, Format.MARKDOWN)}\n</details>"


def _total(bill: Bill) -> str:
    bound = "at least " if bill.estimate.is_lower_bound else ""
    return f"{bound}{usd_text(bill.estimate.monthly_low_usd)}"


def _quoted(text: str) -> str:
    """One line that no Markdown of its own breaks out of."""
    return " ".join(text.split()).replace("<", "&lt;")
