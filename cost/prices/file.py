"""The format of price files: readings of every SKU, with source and date, from cost/prices/*.yaml.

    gpu-h100-sxm/gpu:
      unit: GPU-hour
      covers_vm: true
      readings:
        - {usd: 2.95, date: 2026-05-18, source: ...}
        - {usd: 3.85, date: 2026-09-25, source: ...}

A SKU with one reading may hold it without `readings`. `read` stands for `date` where the source
names no day; `region` limits a reading to one region. Every problem is one line with file and key,
all at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml

from cost.prices.price import CURRENCY, UNITS, Price, PriceBookError, Unit
from stacks.catalog import REGIONS
from stacks.files import MAX_BYTES, is_list, is_map, parse_yaml, read_text
from stacks.spec.decode import Decoder, any_text, between, one_of

_Head = TypeVar("_Head", bound="SkuHead | NoHead")
_Row = TypeVar("_Row", bound="DatedRow")
Money = Annotated[Decimal, between(0, 10**9)]
"""US dollars for one unit."""
_Currency = Annotated[str, one_of(CURRENCY)]
"""Whatever else a price is in must be converted at its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """What one price file says."""

    name: str
    caveat: str
    readings: Mapping[str, tuple[Price, ...]]
    """Every reading of every SKU, in the order of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedRow:
    """What every reading of a price has: who says so, and since when."""

    source: str
    date: date | None = None
    read: date | None = None
    """Day of reading, where the source names none."""
    currency: _Currency = CURRENCY

    @property
    def day(self) -> date:
        """Either of the two; `entries` lets none through without one."""
        found = self.date or self.read
        assert found is not None
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _PriceRow(DatedRow):
    usd: Money
    region: Annotated[str, one_of(*REGIONS)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SkuHead:
    """What all readings of a SKU share."""

    unit: Annotated[str, any_text] | None = None
    covers_vm: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHead:
    """Of an entry that has readings and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BookHead:
    name: str
    currency: _Currency
    caveat: str = ""


def refuse(decoder: Decoder) -> None:
    """Raises what was found, if anything was."""
    if decoder.problems:
        raise PriceBookError("\n".join(decoder.problems))


def read_price_file(path: Path) -> PriceFile:
    """The file's readings; PriceBookError names everything that is wrong with it."""
    decoder = Decoder()
    head, entries = read_head(path, "prices", decoder)
    readings: dict[str, tuple[Price, ...]] = {}
    found = read_entries(decoder, entries, f"{path}.prices", SkuHead, _PriceRow)
    for sku, at, entry, rows in found:
        sold_by = None if entry is None else unit(sku, entry.unit, at, decoder)
        if sold_by is not None and entry is not None:
            prices = tuple(_price(sku, sold_by, entry.covers_vm, row) for row in rows)
            _refuse_duplicates(prices, at, decoder)
            readings[sku] = prices
    refuse(decoder)
    return PriceFile(name=path.stem, caveat=head.caveat if head else "", readings=readings)


def read_head(path: Path, key: str, decoder: Decoder) -> tuple[_BookHead | None, object]:
    """The head of a price file, and what it has under the key."""
    document = read_document(path)
    rest = {name: value for name, value in document.items() if name != key}
    if document.get("name") != path.stem:
        decoder.refuse(f"{path}.name", f"{document.get('name')!r} is not the file's name")
    head = decoder.record(_BookHead, rest, str(path))
    return head, document.get(key)


def read_document(path: Path) -> Mapping[str, object]:
    """The mapping that a YAML file holds; a key written twice is refused."""
    try:
        document = parse_yaml(read_text(path, at_most_bytes=MAX_BYTES))
    except (OSError, UnicodeDecodeError) as error:
        raise PriceBookError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise PriceBookError(f"{path}: not valid YAML: {reason}") from error
    if not is_map(document):
        raise PriceBookError(f"{path}: expected a mapping with name, currency and prices")
    return document


def read_entries(
    decoder: Decoder, entries: object, path: str, head: type[_Head], row: type[_Row]
) -> Iterator[tuple[str, str, _Head | None, list[_Row]]]:
    """Name, path, head and readings of each entry, which is a reading or lists `readings`."""
    if not is_map(entries) or not entries:
        decoder.refuse(path, "expected a mapping of what is sold to its price")
        return
    keys = [each.name for each in fields(row)]
    others = [each.name for each in fields(head)]
    allowed = (*others, "readings", *keys)
    for name, entry in entries.items():
        at = f"{path}.{name}"
        if any_text(name)[1]:  # YAML has keys that are numbers, whatever their type says
            decoder.refuse(at, "what is sold goes by a text; docs/prices.md lists the SKUs")
        elif not is_map(entry):
            decoder.refuse(at, f"expected a mapping of {', '.join(allowed)}")
        else:
            own = {key: entry[key] for key in keys if key in entry}
            for key in entry.keys() - set(allowed):
                decoder.unknown(str(key), allowed, at)
            listed: list[tuple[str, Any]] = [(at, own)]
            if "readings" in entry:
                for key in own:
                    decoder.refuse(f"{at}.{key}", "stands beside 'readings'; move it into one")
                listed = _listed(decoder, entry["readings"], f"{at}.readings")
            found = [_dated(decoder, row, each, place) for place, each in listed]
            rows = [each for each in found if each is not None]
            rest = {key: entry[key] for key in others if key in entry}
            yield name, at, decoder.record(head, rest, at), rows


def _listed(decoder: Decoder, rows: object, path: str) -> list[tuple[str, object]]:
    if is_list(rows) and rows:
        return [(f"{path}[{number}]", each) for number, each in enumerate(rows)]
    decoder.refuse(path, "expected a list of readings")
    return []


def _dated(decoder: Decoder, row: type[_Row], value: object, path: str) -> _Row | None:
    """The reading, which has one of `date` and `read`."""
    found = decoder.record(row, value, path)
    if is_map(value) and ("date" in value) == ("read" in value):
        both = "has both 'date' and 'read'" if "date" in value else "missing"
        decoder.refuse(
            f"{path}.date",
            f"{both}; give `date`, or `read` (the day of reading) where the source has none",
        )
        return None
    return found


def _price(sku: str, sold_by: Unit, covers_vm: bool, row: _PriceRow) -> Price:
    return Price(
        sku=sku,
        unit=sold_by,
        usd=row.usd,
        source=row.source,
        date=row.day,
        is_undated=row.date is None,
        region=row.region,
        covers_vm=covers_vm,
    )


def _refuse_duplicates(readings: Sequence[Price], path: str, decoder: Decoder) -> None:
    """Two readings of one day cannot be put in order, so neither is the newest."""
    seen: set[tuple[date, bool, str | None]] = set()
    for price in readings:
        key = (price.date, price.is_undated, price.region)
        if key in seen:
            where = "all regions" if price.region is None else price.region
            decoder.refuse(path, f"two readings of {price.dated} for {where}; keep one")
        seen.add(key)


def unit(
    sku: str, value: str | None, path: str, decoder: Decoder, *, sku_path: str = ""
) -> Unit | None:
    """The unit of a SKU that is sold, which its price must be for."""
    sold_by = UNITS.get(sku)
    if sold_by is None:
        near = difflib.get_close_matches(sku, UNITS, n=1)
        advice = f"; did you mean '{near[0]}'?" if near else " (docs/prices.md lists them)"
        decoder.refuse(sku_path or path, f"'{sku}' is not sold{advice}")
    elif value != sold_by:
        given = "missing" if value is None else f"'{value}'"
        decoder.refuse(
            f"{path}.unit", f"{given}, but '{sku}' is sold by {sold_by}; convert the price"
        )
    else:
        return sold_by
    return None
