"""What changes on a bill: diff(before, after), two snapshots, with the cause of every change.

Lines are the same when their declaration is; a change to or from an unknown amount is unknown. Owns
which figures differ; why they do is causes.py's, how it looks diff_table.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from cost.causes import Cause, Comparison
from cost.component import Section
from cost.part import Amount
from cost.snapshot import CLUSTER_AMOUNTS, Snapshot, SnapshotLine


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChange:
    """One line of two bills; a side that has no such line costs nothing there."""

    before: SnapshotLine | None
    after: SnapshotLine | None
    causes: tuple[Cause, ...]

    @property
    def line(self) -> SnapshotLine:
        """The line as it is now, or as it was."""
        line = self.after or self.before
        assert line is not None
        return line

    @property
    def before_usd(self) -> Decimal | None:
        """US dollars a month at min_nodes before; None when unknown."""
        return Decimal(0) if self.before is None else self.before.low_usd

    @property
    def after_usd(self) -> Decimal | None:
        """US dollars a month at min_nodes after; None when unknown."""
        return Decimal(0) if self.after is None else self.after.low_usd

    @property
    def change_low_usd(self) -> Decimal | None:
        """US dollars a month more at min_nodes; None when a side is unknown."""
        return _minus(self.after_usd, self.before_usd)

    @property
    def change_high_usd(self) -> Decimal | None:
        """US dollars a month more at max_nodes; None when a side is unknown."""
        before = Decimal(0) if self.before is None else self.before.high_usd
        after = Decimal(0) if self.after is None else self.after.high_usd
        return _minus(after, before)


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountChange:
    """One unit cost of two bills; a side is None where it is not known."""

    label: str
    before_usd: Decimal | None
    after_usd: Decimal | None
    causes: tuple[Cause, ...]
    """Empty where the amount is the same."""
    before_is_lower_bound: bool = False
    after_is_lower_bound: bool = False
    is_comparable: bool = True
    """Whether both sides miss the same dollars."""

    @property
    def change_usd(self) -> Decimal | None:
        """US dollars more; None when a side is not known or misses what the other does not."""
        return _minus(self.after_usd, self.before_usd) if self.is_comparable else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two bills side by side."""

    before: Snapshot
    after: Snapshot
    changes: tuple[LineChange, ...]
    """Lines whose amount or price changes, is new or is gone, by section."""
    amounts: tuple[AmountChange, ...]
    """Every unit cost of either side, changed or not."""
    num_unchanged: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing costs more or less."""
        return not self.changes and not any(amount.causes for amount in self.amounts)

    @property
    def is_incomplete(self) -> bool:
        """Whether a changed line has no amount on a side, so that the total misses it."""
        return any(change.change_low_usd is None for change in self.changes)

    @property
    def change_low_usd(self) -> Decimal:
        """US dollars a month more at min_nodes, of the known amounts."""
        return self.after.low_usd - self.before.low_usd

    @property
    def change_high_usd(self) -> Decimal:
        """US dollars a month more at max_nodes, of the known amounts."""
        return self.after.high_usd - self.before.high_usd


def diff(before: Snapshot, after: Snapshot) -> Difference:
    """What changes from one bill to the other."""
    old = {line.id: line for line in before.lines}
    new = {line.id: line for line in after.lines}
    comparison = Comparison(before, after)
    changes = [
        LineChange(
            before=old.get(name),
            after=new.get(name),
            causes=comparison.of_line(old.get(name), line),
        )
        for name, line in new.items()
        if _figures(old.get(name)) != _figures(line)
    ]
    changes += [
        LineChange(before=line, after=None, causes=comparison.of_line(line, None))
        for name, line in old.items()
        if name not in new
    ]
    order = {str(section): place for place, section in enumerate(Section)}
    changes.sort(key=lambda change: order.get(change.line.section, len(order)))
    return Difference(
        before=before,
        after=after,
        changes=tuple(changes),
        amounts=_amounts(before, after, tuple(changes), comparison),
        num_unchanged=len({*old, *new}) - len(changes),
    )


def _amounts(
    before: Snapshot, after: Snapshot, changes: tuple[LineChange, ...], comparison: Comparison
) -> tuple[AmountChange, ...]:
    old = {amount.name: amount for amount in before.amounts}
    new = {amount.name: amount for amount in after.amounts}
    of_bill = tuple(dict.fromkeys(cause for change in changes for cause in change.causes))
    is_incomplete = any(change.change_low_usd is None for change in changes)
    found: list[AmountChange] = []
    for name in (*new, *(name for name in old if name not in new)):
        was, now = _side(name, old, new), _side(name, new, old)
        causes = comparison.of_amount(was, now, of_bill) if was.usd != now.usd else ()
        shares_bill = name in CLUSTER_AMOUNTS
        is_bound = shares_bill and (before.is_lower_bound or after.is_lower_bound)
        # Shared by as many chats as before, what no side has counted changes nothing.
        is_same_share = not is_incomplete and set(causes) <= set(of_bill)
        found.append(
            AmountChange(
                label=now.label,
                before_usd=was.usd,
                after_usd=now.usd,
                causes=causes,
                before_is_lower_bound=shares_bill and before.is_lower_bound,
                after_is_lower_bound=shares_bill and after.is_lower_bound,
                is_comparable=not is_bound or is_same_share,
            )
        )
    return tuple(found)


def _side(name: str, side: dict[str, Amount], other: dict[str, Amount]) -> Amount:
    """The amount of one side; where only the other has it, an unknown one of the same name."""
    if name in side:
        return side[name]
    found = other[name]
    return Amount(name=name, label=found.label, usd=None, basis="not on the bill", keys=found.keys)


def _figures(line: SnapshotLine | None) -> tuple[object, ...] | None:
    if line is None:
        return None
    # Without an amount, what is declared is all there is to compare.
    size = line.size if line.low_usd is None else None
    return line.unit_usd, line.low_usd, line.high_usd, size


def _minus(after: Decimal | None, before: Decimal | None) -> Decimal | None:
    return None if after is None or before is None else after - before
