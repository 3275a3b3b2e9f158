"""What changes on a bill, and why: diff(before, after) of two snapshots, take(bill).

Lines are the same when their declaration is; a change to or from an unknown amount is unknown. The
causes of a line are the changed config keys among its own, else the price, else a measurement.

A snapshot is what a bill came to, as plain values of the output `cost.snapshot`, for the next
preview to read: amounts and unit prices by line, unit costs, and the declared values that they
follow from, so that a difference needs neither the old code nor the old prices. One text a line of
the bill, since the engine prints an output field by field; another version of the format is
refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final

from cost.bill.bill import Bill, figures
from cost.chat.speeds import Basis
from cost.chat.unit_costs import Amount, NotKnown, UnitCosts
from cost.prices.book import Layer, Price
from cost.report.layout import rounded
from cost.resources.estimate import Total, total_of
from cost.resources.lines import CostComponent, Section
from stacks.changes import NODE_KEYS, STORAGE_KEYS, declared_values, parents_of
from stacks.files import is_map
from stacks.load import RENAMED_BOOKS
from stacks.spec.decode import Decoder, any_text

_NANO: Final = Decimal("1e-9")
"""Digits of a quotient that are kept: a billionth of a dollar."""
CLUSTER_AMOUNTS: Final = ("per_run_usd", "per_1m_tokens_usd", "per_chat_usd")
"""Names of the unit costs that share the whole bill: they miss what its total misses."""
_PARTITIONS: Final = "slurm.partitions"
"""Kept whole: a job that changes its partition is priced by one that no amount had before."""
PRICE_KEYS: Final = ("prices", "live_prices", "nebius.region", "contract_prices")
"""Config keys that choose prices, those by SKU last; no line has them among its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPrice:
    """One price as it was used."""

    usd: Decimal
    unit: str
    date: str
    source: str
    book: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotLine:
    """One line as it was billed; `low` at min_nodes, `high` at max_nodes."""

    id: str
    section: str
    name: str
    size: str
    low_usd: Decimal | None
    """US dollars a 730-hour month; None when unknown."""
    high_usd: Decimal | None
    unit_usd: Decimal | None
    """US dollars of one piece as printed; None when unknown."""
    per: str
    skus: tuple[str, ...]
    keys: tuple[str, ...]
    unknown: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One bill, ready to compare."""

    stack: str
    book: str
    lines: tuple[SnapshotLine, ...]
    amounts: tuple[Amount, ...]
    prices: Mapping[str, SnapshotPrice]
    """By SKU."""
    values: Mapping[str, str]
    """Declared values by config key."""

    @property
    def total(self) -> Total:
        """The sum of every line with an amount."""
        return total_of(self.lines)


def cost_outputs(bill: Bill) -> dict[str, object]:
    """The stack output `cost`: figures, and the snapshot that the next preview compares with.

    The same on every run: dates, never ages, so an unchanged stack previews unchanged tomorrow.
    """
    return {**figures(bill), "snapshot": plain(take(bill))}


def take(bill: Bill) -> Snapshot:
    """The bill's snapshot."""
    lines = tuple(_line(component) for component in bill.estimate.components)
    amounts = tuple(
        replace(amount, usd=None if amount.usd is None else rounded(amount.usd, _NANO))
        for amount in (*unit_amounts(bill), *bill.amounts)
    )
    prices = {
        price.sku: price for component in bill.estimate.components for price in component.prices
    }
    wanted = {key for line in lines for key in line.keys}
    wanted |= {key for amount in amounts for key in amount.keys}
    wanted |= {*STORAGE_KEYS, *NODE_KEYS, *PRICE_KEYS, _PARTITIONS}
    return Snapshot(
        stack=bill.spec.name,
        book=bill.estimate.book.name,
        lines=lines,
        amounts=amounts,
        prices={sku: _price(price, bill.estimate.book.name) for sku, price in prices.items()},
        values={
            key: text
            for key, text in declared_values(bill.spec).items()
            if key in wanted or not wanted.isdisjoint(parents_of(key))
        },
    )


def unit_amounts(units: UnitCosts) -> tuple[Amount, ...]:
    """Unit costs of the whole cluster: a run, a million tokens and a chat of the first scenario."""
    run, chats = units.run, units.chats
    if isinstance(run, NotKnown):
        per_run, run_basis = None, str(run)
    else:
        per_run, run_basis = run.cluster_usd, f"measured: {run.job}, job {run.job_id}"
    if isinstance(chats, NotKnown):
        per_tokens, per_chat, basis = None, None, str(chats)
    else:
        first = chats[0]
        per_tokens, per_chat = first.cluster_usd_per_1m_tokens, first.cluster_low_usd
        origin = "measured" if first.speed.basis is Basis.MEASURED else "assumed"
        basis = f"{origin}: {first.speed.scenario}: {first.speed.source}"
    chat = ("chat",)
    return (
        Amount(name="per_run_usd", label="$/run", usd=per_run, basis=run_basis),
        Amount(
            name="per_1m_tokens_usd", label="$/1M tokens", usd=per_tokens, basis=basis, keys=chat
        ),
        Amount(name="per_chat_usd", label="$/chat", usd=per_chat, basis=basis, keys=chat),
    )


def _line(component: CostComponent) -> SnapshotLine:
    rate = component.rate
    return SnapshotLine(
        id=component.id,
        section=str(component.section),
        name=component.name,
        size=component.size,
        low_usd=component.low_usd,
        high_usd=component.high_usd,
        unit_usd=None if rate is None else rate.usd,
        per="" if rate is None else rate.per,
        skus=tuple(price.sku for price in component.prices),
        keys=component.keys,
        unknown=component.unknown,
    )


def _price(price: Price, book: str) -> SnapshotPrice:
    return SnapshotPrice(
        usd=price.usd,
        unit=str(price.unit),
        date=price.dated,
        source=price.source,
        book=book if price.layer is Layer.BOOK else str(price.layer),
    )


FORMAT: Final = 1
_GAP: Final = " | "
_NONE: Final = "-"


class SnapshotError(ValueError):
    """A snapshot that this version cannot read."""


def plain(snapshot: Snapshot) -> dict[str, object]:
    """The snapshot as plain values."""
    return {
        "format": FORMAT,
        "stack": snapshot.stack,
        "book": snapshot.book,
        "lines": {line.id: _text(line) for line in snapshot.lines},
        "amounts": {amount.name: _text(amount) for amount in snapshot.amounts},
        "prices": {sku: _text(price) for sku, price in snapshot.prices.items()},
        "values": dict(snapshot.values),
    }


def parse(value: object) -> Snapshot:
    """The snapshot of plain values; SnapshotError says what cannot be read."""
    if not is_map(value):
        raise SnapshotError("it holds no snapshot")
    found = value.get("format")
    # The engine has one kind of number: a version may come back as 1.0.
    if found != FORMAT:
        raise SnapshotError(f"its format is {found!r}, and this version reads {FORMAT}")
    decoder = Decoder(is_json=True)
    stored = decoder.record(_Stored, value, "")
    if stored is None:
        raise SnapshotError(f"it is damaged: {'; '.join(decoder.problems)}")
    return Snapshot(
        stack=stored.stack,
        book=_book(stored.book),
        lines=tuple(
            SnapshotLine(id=name, **_read(SnapshotLine, text))
            for name, text in stored.lines.items()
        ),
        amounts=tuple(
            Amount(name=name, **_read(Amount, text)) for name, text in stored.amounts.items()
        ),
        prices={
            sku: SnapshotPrice(**_read(SnapshotPrice, text)) for sku, text in stored.prices.items()
        },
        # The engine's mappings come in another order in every process, and steps of a change
        # are told in the order of these.
        values={
            key: _book(text) if key == "prices" else text
            for key, text in sorted(stored.values.items())
        },
    )


_Text = Annotated[str, any_text]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """A snapshot as the engine keeps it."""

    stack: _Text
    book: _Text
    lines: Mapping[str, _Text]
    amounts: Mapping[str, _Text]
    prices: Mapping[str, _Text]
    values: Mapping[str, _Text]


_ORDER: Final[Mapping[type, tuple[str, ...]]] = {
    SnapshotLine: (
        *("section", "name", "size", "unit_usd", "per", "low_usd", "high_usd", "skus", "keys"),
        "unknown",
    ),
    Amount: ("label", "usd", "keys", "basis"),
    SnapshotPrice: ("usd", "unit", "date", "book", "source"),
}
"""Fields of a record in the order of its text; only the last may hold the gap itself."""


def _text(record: SnapshotLine | Amount | SnapshotPrice) -> str:
    *inner, last = (_written(getattr(record, name)) for name in _ORDER[type(record)])
    return _GAP.join((*(text.replace(_GAP, " / ") for text in inner), last))


def _written(value: str | Decimal | tuple[str, ...] | None) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, Decimal):
        return f"{value:f}"
    return _NONE if value is None else value


def _read(cls: type, text: str) -> dict[str, Any]:
    """The fields of the record; SnapshotError of another text."""
    names = _ORDER[cls]
    try:
        pairs = zip(names, text.split(_GAP, len(names) - 1), strict=True)
        return {name: _value(name, each) for name, each in pairs}
    except (ValueError, InvalidOperation) as error:
        raise SnapshotError(f"it is damaged: {text!r} is not {', '.join(names)}") from error


def _value(name: str, text: str) -> object:
    if name in ("skus", "keys"):
        return tuple(text.split(", ")) if text else ()
    if name.endswith("usd"):
        return None if text == _NONE else Decimal(text)
    if name == "book":
        return _book(text)
    return None if name == "unknown" and text == _NONE else text


def _book(name: str) -> str:
    return RENAMED_BOOKS.get(name, name)


_PROGRAM: Final = "no config key: this version of the program counts the line differently"


class Comparison:
    """Two snapshots with their changed keys and prices, found once for all lines."""

    def __init__(self, before: Snapshot, after: Snapshot) -> None:
        self._before = before
        self._after = after
        self._by_parent: dict[str, list[tuple[int, str]]] = {}
        for position, (key, cause) in enumerate(changed_keys(before.values, after.values)):
            for parent in parents_of(key):
                self._by_parent.setdefault(parent, []).append((position, cause))

    def of_line(self, before: SnapshotLine | None, after: SnapshotLine | None) -> tuple[str, ...]:
        """Causes of a line's change, config keys first."""
        lines = [line for line in (before, after) if line is not None]
        causes = self._under(key for line in lines for key in line.keys)
        prices = [] if before is None or after is None else list(self._prices(before, after))
        if prices or not causes:
            skus = {sku for line in lines for sku in line.skus}
            causes += self._under(PRICE_KEYS[:-1])
            causes += self._under(f"{PRICE_KEYS[-1]}[{sku}]" for sku in sorted(skus))
        return (*causes, *prices) or (_PROGRAM,)

    def of_amount(self, before: Amount, after: Amount, of_bill: Iterable[str]) -> tuple[str, ...]:
        """Causes of a unit cost's change: its own keys, a new basis, then those of the bill."""
        causes = self._under((*before.keys, *after.keys))
        if before.basis != after.basis and (not causes or "measured" in after.basis):
            causes.append(f"{after.label}: now {after.basis}; was {before.basis}")
        return tuple(dict.fromkeys([*causes, *of_bill])) or (_PROGRAM,)

    def _under(self, parents: Iterable[str]) -> list[str]:
        """Causes of the changed keys inside the parents, in the order of the declaration."""
        found = {each for parent in parents for each in self._by_parent.get(parent, ())}
        return list(dict.fromkeys(cause for _, cause in sorted(found, key=lambda each: each[0])))

    def _prices(self, before: SnapshotLine, after: SnapshotLine) -> Iterator[str]:
        for sku in after.skus:
            old, new = self._before.prices.get(sku), self._after.prices.get(sku)
            if old is None or new is None or sku not in before.skus or old.usd == new.usd:
                continue
            yield (
                f"price {sku}: {old.usd:f} ({old.book}, {old.date}) -> {new.usd:f} ({new.book}, "
                f"{new.date}) USD per {new.unit}"
            )


def changed_keys(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, str]]:
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
                yield key, f"{parent}: {'added' if is_new else 'removed'}"
                continue
        was = "not set" if old is None else old
        now = "not set" if new is None else new
        yield key, f"{key}: {was} -> {now}"


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
    causes: tuple[str, ...]

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
    causes: tuple[str, ...]
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
        return self.after.total.low_usd - self.before.total.low_usd

    @property
    def change_high_usd(self) -> Decimal:
        """US dollars a month more at max_nodes, of the known amounts."""
        return self.after.total.high_usd - self.before.total.high_usd


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
    bound_before, bound_after = before.total.is_lower_bound, after.total.is_lower_bound
    found: list[AmountChange] = []
    for name in {**new, **old}:
        was, now = _side(name, old, new), _side(name, new, old)
        causes = comparison.of_amount(was, now, of_bill) if was.usd != now.usd else ()
        shares_bill = name in CLUSTER_AMOUNTS
        is_bound = shares_bill and (bound_before or bound_after)
        # Shared by as many chats as before, what no side has counted changes nothing.
        is_same_share = not is_incomplete and set(causes) <= set(of_bill)
        found.append(
            AmountChange(
                label=now.label,
                before_usd=was.usd,
                after_usd=now.usd,
                causes=causes,
                before_is_lower_bound=shares_bill and bound_before,
                after_is_lower_bound=shares_bill and bound_after,
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
