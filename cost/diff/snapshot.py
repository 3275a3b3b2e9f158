"""What a bill came to, as plain values of the output `cost.snapshot`, for the next preview to read.

Amounts and unit prices by line, unit costs, and the declared values that they follow from: a
difference needs neither the old code nor the old prices. One text a line of the bill, since the
engine prints an output field by field; another version of the format is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Final

from cost.bill.table import figures
from cost.chat.speeds import Basis
from cost.chat.unit_costs import Amount, NotKnown, UnitCosts
from cost.prices.book import HOURS_PER_MONTH, Layer, Price
from cost.report.layout import rounded
from cost.resources.lines import CostComponent
from stacks.changes import NODE_KEYS, STORAGE_KEYS, declared_values, parents_of
from stacks.files import is_map
from stacks.load import RENAMED_BOOKS
from stacks.spec.decode import Decoder, any_text

if TYPE_CHECKING:
    from cost.bill.bill import Bill


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
    def is_lower_bound(self) -> bool:
        """Whether a line has no amount, so that every total misses it."""
        return any(line.low_usd is None for line in self.lines)

    @property
    def low_usd(self) -> Decimal:
        """US dollars a month at min_nodes of every line with an amount."""
        return sum((line.low_usd for line in self.lines if line.low_usd is not None), Decimal(0))

    @property
    def high_usd(self) -> Decimal:
        """US dollars a month at max_nodes of every line with an amount."""
        return sum((line.high_usd for line in self.lines if line.high_usd is not None), Decimal(0))

    @property
    def hourly_low_usd(self) -> Decimal:
        """US dollars an hour at min_nodes."""
        return self.low_usd / HOURS_PER_MONTH

    @property
    def hourly_high_usd(self) -> Decimal:
        """US dollars an hour at max_nodes."""
        return self.high_usd / HOURS_PER_MONTH


def outputs(bill: Bill) -> dict[str, object]:
    """The stack output `cost`: figures, and the snapshot that the next preview compares with.

    The same on every run: dates, never ages, so an unchanged stack previews unchanged tomorrow.
    """
    return {**figures(bill.estimate, bill.unit_costs), "snapshot": plain(take(bill))}


def take(bill: Bill) -> Snapshot:
    """The bill's snapshot."""
    lines = tuple(_line(component) for component in bill.estimate.components)
    amounts = tuple(
        replace(amount, usd=None if amount.usd is None else rounded(amount.usd, _NANO))
        for amount in (*unit_amounts(bill.unit_costs), *bill.amounts)
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
        low_usd=component.monthly_low_usd,
        high_usd=component.monthly_high_usd,
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
    try:
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
                sku: SnapshotPrice(**_read(SnapshotPrice, text))
                for sku, text in stored.prices.items()
            },
            # The engine's mappings come in another order in every process, and steps of a change
            # are told in the order of these.
            values={
                key: _book(text) if key == "prices" else text
                for key, text in sorted(stored.values.items())
            },
        )
    except (ValueError, InvalidOperation) as error:
        raise SnapshotError(f"it is damaged: {error}") from error


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
    """The fields of the record; ValueError or InvalidOperation of another text."""
    names = _ORDER[cls]
    pairs = zip(names, text.split(_GAP, len(names) - 1), strict=True)
    return {name: _value(name, each) for name, each in pairs}


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
