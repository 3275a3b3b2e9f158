"""Why a figure differs between two snapshots: the config keys, else the price, else a measurement.

A line's causes are the changed keys among its own; two changed keys are both named. Owns what a
cause says. Which figures differ is diff.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cost.part import Amount
from cost.snapshot import PRICE_KEYS, Snapshot, SnapshotLine
from stacks.declared import parents_of


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
            causes.append(
                Cause(
                    kind=Kind.MEASUREMENT,
                    subject=after.label,
                    detail=f"now {after.basis}; was {before.basis}",
                )
            )
        return tuple(dict.fromkeys([*causes, *of_bill])) or (_PROGRAM,)

    def _under(self, parents: Iterable[str]) -> list[Cause]:
        """Causes of the changed keys inside the parents, in the order of the declaration."""
        found = {each for parent in parents for each in self._by_parent.get(parent, ())}
        return list(dict.fromkeys(cause for _, cause in sorted(found, key=_position)))

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
                yield (
                    key,
                    Cause(kind=Kind.KEY, subject=parent, detail="added" if is_new else "removed"),
                )
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


def _position(found: tuple[int, Cause]) -> int:
    return found[0]
