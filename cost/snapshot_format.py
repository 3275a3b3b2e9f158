"""A snapshot as plain values and back: parse(plain(snapshot)) == snapshot.

Owns the format of the output `cost.snapshot` and its version; another version is refused, not
guessed. One text a line of the bill: the engine prints an output field by field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Final, TypeGuard

from cost.part import Amount
from cost.snapshot import Snapshot, SnapshotLine, SnapshotPrice

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
        "lines": {
            line.id: _joined(
                line.section,
                line.name,
                line.size,
                _usd_text(line.unit_usd),
                line.per,
                _usd_text(line.low_usd),
                _usd_text(line.high_usd),
                ", ".join(line.skus),
                ", ".join(line.keys),
                _NONE if line.unknown is None else line.unknown,
            )
            for line in snapshot.lines
        },
        "amounts": {
            amount.name: _joined(
                amount.label, _usd_text(amount.usd), ", ".join(amount.keys), amount.basis
            )
            for amount in snapshot.amounts
        },
        "prices": {
            sku: _joined(_usd_text(price.usd), price.unit, price.date, price.book, price.source)
            for sku, price in snapshot.prices.items()
        },
        "values": dict(snapshot.values),
    }


def parse(value: object) -> Snapshot:
    """The snapshot of plain values; SnapshotError says what cannot be read."""
    if not _is_map(value):
        raise SnapshotError("it holds no snapshot")
    found = value.get("format")
    # The engine has one kind of number: a version may come back as 1.0.
    if found != FORMAT:
        raise SnapshotError(f"its format is {found!r}, and this version reads {FORMAT}")
    try:
        return Snapshot(
            stack=_str(value, "stack"),
            book=_str(value, "book"),
            lines=tuple(_line(name, text) for name, text in _texts(value, "lines")),
            amounts=tuple(_amount(name, text) for name, text in _texts(value, "amounts")),
            prices={sku: _price(text) for sku, text in _texts(value, "prices")},
            # The engine's mappings come in another order in every process, and steps of a change
            # are told in the order of these.
            values=dict(sorted(_texts(value, "values"))),
        )
    except (KeyError, TypeError, ValueError, InvalidOperation) as error:
        raise SnapshotError(f"it is damaged: {error}") from error


def _line(name: str, text: str) -> SnapshotLine:
    section, label, size, unit_usd, per, low, high, skus, keys, unknown = text.split(_GAP, 9)
    return SnapshotLine(
        id=name,
        section=section,
        name=label,
        size=size,
        low_usd=_usd(low),
        high_usd=_usd(high),
        unit_usd=_usd(unit_usd),
        per=per,
        skus=_words(skus),
        keys=_words(keys),
        unknown=None if unknown == _NONE else unknown,
    )


def _amount(name: str, text: str) -> Amount:
    label, usd, keys, basis = text.split(_GAP, 3)
    return Amount(name=name, label=label, usd=_usd(usd), basis=basis, keys=_words(keys))


def _price(text: str) -> SnapshotPrice:
    usd, unit, date, book, source = text.split(_GAP, 4)
    return SnapshotPrice(usd=Decimal(usd), unit=unit, date=date, book=book, source=source)


def _joined(*texts: str) -> str:
    """The texts in one; only the last may hold the gap itself."""
    *inner, last = texts
    return _GAP.join((*(text.replace(_GAP, " / ") for text in inner), last))


def _usd_text(usd: Decimal | None) -> str:
    return _NONE if usd is None else f"{usd:f}"


def _usd(text: str) -> Decimal | None:
    return None if text == _NONE else Decimal(text)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(", ")) if text else ()


def _str(values: Mapping[str, object], key: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise TypeError(f"{key}: expected text, got {type(value).__name__}")
    return value


def _texts(values: Mapping[str, object], key: str) -> Iterable[tuple[str, str]]:
    inner = values[key]
    if not _is_map(inner):
        raise TypeError(f"{key}: expected a mapping, got {type(inner).__name__}")
    for name in inner:
        yield name, _str(inner, name)


def _is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)
