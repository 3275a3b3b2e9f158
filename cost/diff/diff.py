"""What changes on a bill, and why: diff(before, after) of two snapshots.

Lines are the same when their declaration is; a change to or from an unknown amount is unknown. The
causes of a line are the changed config keys among its own, else the price, else a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.chat.unit_costs import Amount
from cost.diff.snapshot import CLUSTER_AMOUNTS, PRICE_KEYS, Snapshot, SnapshotLine
from cost.resources.lines import Section
from stacks.changes import parents_of


class Kind(StrEnum):
    """What changed."""

    KEY = "config key"
    PRICE = "price"
    MEASUREMENT = "measurement"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason of a change."""

    kind: Kind
    subject: str
    """Config key, SKU, or name of the amount."""
    detail: str
    """What it was and is."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.detail}"


_PROGRAM: Final = Cause(
    kind=Kind.PROGRAM,
    subject="no config key",
    detail="this version of the program counts the line differently",
)


class Comparison:
    """Two snapshots with their changed keys and prices, found once for all lines."""

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self._before = before
        self._after = after
        self._by_parent: dict[str, list[tuple[int, Cause]]] = {}
        for position, (key, cause) in enumerate(changed_keys(before.values, after.values)):
            for parent in parents_of(key):
                self._by_parent.setdefault(parent, []).append((position, cause))

    def of_line(self, before: SnapshotLine | None, after: SnapshotLine | None) -> tuple[Cause, ...]:
        """Causes of a line's change, config keys first."""
        lines = [line for line in (before, after) if line is not None]
        causes = self._under(key for line in lines for key in line.keys)
        prices = [] if before is None or after is None else list(self._prices(before, after))
        if prices or not causes:
            skus = {sku for line in lines for sku in line.skus}
            causes += self._under(PRICE_KEYS[:-1])
            causes += self._under(f"{PRICE_KEYS[-1]}[{sku}]" for sku in sorted(skus))
        return (*causes, *prices) or (_PROGRAM,)

    def of_amount(
        self, before: Amount, after: Amount, of_bill: Iterable[Cause]
    ) -> tuple[Cause, ...]:
        """Causes of a unit cost's change: its own keys, a new basis, then those of the bill."""
        causes = self._under((*before.keys, *after.keys))
        if before.basis != after.basis and (not causes or "measured" in after.basis):
            detail = f"now {after.basis}; was {before.basis}"
            causes.append(Cause(kind=Kind.MEASUREMENT, subject=after.label, detail=detail))
        return tuple(dict.fromkeys([*causes, *of_bill])) or (_PROGRAM,)

    def _under(self, parents: Iterable[str]) -> list[Cause]:
        """Causes of the changed keys inside the parents, in the order of the declaration."""
        found = {each for parent in parents for each in self._by_parent.get(parent, ())}
        return list(dict.fromkeys(cause for _, cause in sorted(found, key=lambda each: each[0])))

    def _prices(self, before: SnapshotLine, after: SnapshotLine) -> Iterator[Cause]:
        for sku in after.skus:
            old, new = self._before.prices.get(sku), self._after.prices.get(sku)
            if old is None or new is None or sku not in before.skus or old.usd == new.usd:
                continue
            yield Cause(
                kind=Kind.PRICE,
                subject=f"price {sku}",
                detail=f"{old.usd:f} ({old.book}, {old.date}) -> {new.usd:f} ({new.book}, "
                f"{new.date}) USD per {new.unit}",
            )


def changed_keys(
    before: Mapping[str, str], after: Mapping[str, str]
) -> Iterator[tuple[str, Cause]]:
    """Every changed leaf key with its cause; what came or went as a whole has its parent's."""
    before, after = _ends(before, after), _ends(after, before)
    records: dict[bool, frozenset[str]] = {}
    for key in (*after, *(key for key in before if key not in after)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        if old is None or new is None:
            is_new = old is None
            if is_new not in records:
                other = before if is_new else after
                records[is_new] = frozenset(each for name in other for each in parents_of(name))
            parent = next((each for each in _records(key) if each not in records[is_new]), None)
            if parent is not None:
                detail = "added" if is_new else "removed"
                yield key, Cause(kind=Kind.KEY, subject=parent, detail=detail)
                continue
        was = "not set" if old is None else old
        now = "not set" if new is None else new
        yield key, Cause(kind=Kind.KEY, subject=key, detail=f"{was} -> {now}")


def _ends(side: Mapping[str, str], other: Mapping[str, str]) -> Mapping[str, str]:
    """The side with both ends of a node group whose ends the other declares one by one.

    `nodes: 4` is short for min_nodes and max_nodes of 4; who changes one of them to 4 changes one.
    """
    found: dict[str, str] = {}
    for key, value in side.items():
        group = key.removesuffix(".nodes")
        if group != key and key.startswith("nodes.") and f"{group}.min_nodes" in other:
            found |= {f"{group}.min_nodes": value, f"{group}.max_nodes": value}
        else:
            found[key] = value
    return found


def _records(key: str) -> Iterator[str]:
    """Records around a leaf, outermost first: `storage.submounts[data]`, not the list's name."""
    for parent in parents_of(key):
        if parent != key and key[len(parent)] == ".":
            yield parent


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
    pairs = [(old.get(name), new.get(name)) for name in {**new, **old}]
    changes = [
        LineChange(before=was, after=now, causes=comparison.of_line(was, now))
        for was, now in pairs
        if _figures(was) != _figures(now)
    ]
    order = {str(section): place for place, section in enumerate(Section)}
    changes.sort(key=lambda change: order.get(change.line.section, len(order)))
    return Difference(
        before=before,
        after=after,
        changes=tuple(changes),
        amounts=_amounts(before, after, tuple(changes), comparison),
        num_unchanged=len(pairs) - len(changes),
    )


def _amounts(
    before: Snapshot, after: Snapshot, changes: tuple[LineChange, ...], comparison: Comparison
) -> tuple[AmountChange, ...]:
    old = {amount.name: amount for amount in before.amounts}
    new = {amount.name: amount for amount in after.amounts}
    of_bill = tuple(dict.fromkeys(cause for change in changes for cause in change.causes))
    is_incomplete = any(change.change_low_usd is None for change in changes)
    found: list[AmountChange] = []
    for name in {**new, **old}:
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
