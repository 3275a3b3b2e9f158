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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

import yaml

from cost.prices.price import CURRENCY, UNITS, Price, PriceBookError, Unit, unit_of
from stacks.catalog import REGIONS
from stacks.errors import visible
from stacks.files import MAX_BYTES, is_list, is_map, parse_yaml, read_text

_MOST_USD: Final = 10**9
_BOOK_KEYS: Final = ("name", "currency", "caveat", "prices")
_READING_KEYS: Final = ("usd", "source", "date", "read", "region", "currency")
_SKU_KEYS: Final = ("unit", "covers_vm", "readings", *_READING_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceFile:
    """What one price file says."""

    name: str
    caveat: str
    readings: Mapping[str, tuple[Price, ...]]
    """Every reading of every SKU, in the order of the file."""


@dataclass(slots=True)
class Problems:
    """Findings about one file, a line each."""

    lines: list[str] = field(default_factory=list[str])

    def add(self, path: str, message: str) -> None:
        """Adds one line, whatever a key or value of the file holds."""
        self.lines.append(visible(f"{path}: {message}"))

    def refuse(self) -> None:
        """Raises what was found, if anything was."""
        if self.lines:
            raise PriceBookError("\n".join(self.lines))


def read_price_file(path: Path) -> PriceFile:
    """The file's readings; PriceBookError names everything that is wrong with it."""
    document = read_document(path)
    problems = Problems()
    entries = document.get("prices")
    unknown_keys(document, _BOOK_KEYS, str(path), problems)
    if document.get("name") != path.stem:
        problems.add(f"{path}.name", f"{document.get('name')!r} is not the file's name")
    check_currency(document.get("currency"), f"{path}.currency", problems)
    readings: dict[str, tuple[Price, ...]] = {}
    if is_map(entries) and entries:
        for sku, entry in entries.items():
            if not is_text(sku):
                problems.add(f"{path}.prices.{sku}", "a SKU is text; docs/prices.md lists them")
                continue
            readings[sku] = _sku(sku, entry, f"{path}.prices.{sku}", problems)
    else:
        problems.add(f"{path}.prices", "expected a mapping of SKUs")
    caveat = text(document["caveat"], f"{path}.caveat", problems) if "caveat" in document else ""
    problems.refuse()
    return PriceFile(name=path.stem, caveat=caveat or "", readings=readings)


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
        raise PriceBookError(f"{path}: expected a mapping of {', '.join(_BOOK_KEYS)}")
    return document


def is_text(value: object) -> bool:
    """Whether YAML read a text; a key may be a number or nothing, whatever its type says."""
    return isinstance(value, str)


def _sku(sku: str, entry: object, path: str, problems: Problems) -> tuple[Price, ...]:
    if not is_map(entry):
        problems.add(path, f"expected a mapping of {', '.join(_SKU_KEYS)}")
        return ()
    unknown_keys(entry, _SKU_KEYS, path, problems)
    sold_by = unit(sku, entry.get("unit"), path, problems)
    covers_vm = entry.get("covers_vm", False)
    if not isinstance(covers_vm, bool):
        problems.add(f"{path}.covers_vm", f"{covers_vm!r} is neither true nor false")
    rows = reading_rows(entry, _READING_KEYS, path, problems)
    found = [
        _reading(sku, sold_by, covers_vm is True, row, row_path, problems) for row_path, row in rows
    ]
    readings = tuple(price for price in found if price is not None)
    _refuse_duplicates(readings, path, problems)
    return readings


def reading_rows(
    entry: Mapping[str, object], keys: Sequence[str], path: str, problems: Problems
) -> list[tuple[str, Mapping[str, object]]]:
    """Path and content of every reading of an entry, which holds `keys` or lists `readings`."""
    own = {key: entry[key] for key in keys if key in entry}
    if "readings" not in entry:
        return [(path, own)]
    for key in own:
        problems.add(f"{path}.{key}", "stands beside 'readings'; move it into a reading")
    rows = entry["readings"]
    if not is_list(rows) or not rows:
        problems.add(f"{path}.readings", "expected a list of readings")
        return []
    found: list[tuple[str, Mapping[str, object]]] = []
    for number, row in enumerate(rows):
        row_path = f"{path}.readings[{number}]"
        if is_map(row):
            unknown_keys(row, keys, row_path, problems)
            found.append((row_path, row))
        else:
            problems.add(row_path, f"expected a mapping of {', '.join(keys)}")
    return found


def _reading(
    sku: str,
    sold_by: Unit | None,
    covers_vm: bool,
    row: Mapping[str, object],
    path: str,
    problems: Problems,
) -> Price | None:
    before = len(problems.lines)
    usd = money(row.get("usd"), f"{path}.usd", problems)
    source = text(row.get("source"), f"{path}.source", problems)
    day, is_undated = day_of(row, path, problems)
    check_currency(row.get("currency", CURRENCY), f"{path}.currency", problems)
    region = row.get("region")
    if region is not None and region not in REGIONS:
        problems.add(f"{path}.region", f"{region!r} is not one of {', '.join(REGIONS)}")
    if len(problems.lines) > before or sold_by is None:
        return None
    assert usd is not None
    assert source is not None
    assert day is not None
    return Price(
        sku=sku,
        unit=sold_by,
        usd=usd,
        source=source,
        date=day,
        is_undated=is_undated,
        region=None if region is None else str(region),
        covers_vm=covers_vm,
    )


def _refuse_duplicates(readings: Sequence[Price], path: str, problems: Problems) -> None:
    """Two readings of one day cannot be put in order, so neither is the newest."""
    seen: set[tuple[date, bool, str | None]] = set()
    for price in readings:
        key = (price.date, price.is_undated, price.region)
        if key in seen:
            where = "all regions" if price.region is None else price.region
            problems.add(path, f"two readings of {price.dated} for {where}; keep one")
        seen.add(key)


def unit(
    sku: str, value: object, path: str, problems: Problems, *, sku_path: str = ""
) -> Unit | None:
    """The unit of a SKU that is sold, which its price must be for."""
    sold_by = unit_of(sku)
    if sold_by is None:
        near = difflib.get_close_matches(sku, UNITS, n=1)
        advice = f"; did you mean '{near[0]}'?" if near else " (docs/prices.md lists them)"
        problems.add(sku_path or path, f"'{sku}' is not sold{advice}")
    elif value is None:
        problems.add(f"{path}.unit", "missing")
    elif value != sold_by:
        other = f"'{sku}' is sold by {sold_by}; convert the price"
        problems.add(f"{path}.unit", f"'{value}', but {other}")
    else:
        return sold_by
    return None


def day_of(row: Mapping[str, object], path: str, problems: Problems) -> tuple[date | None, bool]:
    """Day of a reading and whether its source is undated."""
    if ("date" in row) == ("read" in row):
        both = "has both 'date' and 'read'" if "date" in row else "missing"
        problems.add(
            f"{path}.date",
            f"{both}; give `date`, or `read` (the day of reading) where the source has none",
        )
        return None, False
    key = "date" if "date" in row else "read"
    return day(row[key], f"{path}.{key}", problems), key == "read"


def day(value: object, path: str, problems: Problems) -> date | None:
    """A day that is not in the future."""
    try:
        found = date.fromisoformat(str(value))
    except ValueError:
        problems.add(path, f"{value!r} is not a day of the form YYYY-MM-DD")
        return None
    if found > _today():
        problems.add(path, f"{found} is in the future; give the day on which it was read")
        return None
    return found


def _today() -> date:
    """Today where the day is latest: here, or in UTC where the clock runs behind it."""
    return max(datetime.now(UTC).date(), datetime.now(UTC).astimezone().date())


def money(value: object, path: str, problems: Problems) -> Decimal | None:
    """An amount of US dollars, 0 or more, with every digit that was written."""
    if value is None:
        problems.add(path, "missing")
        return None
    try:
        usd = Decimal(value if isinstance(value, int | Decimal | str) else str(value))
    except InvalidOperation:
        problems.add(path, f"{value!r} is not a number")
        return None
    if isinstance(value, bool) or not usd.is_finite() or not 0 <= usd <= _MOST_USD:
        problems.add(path, f"{value} is not an amount of money; use 0 to {_MOST_USD:,}")
        return None
    return usd


def text(value: object, path: str, problems: Problems) -> str | None:
    """A text with something in it."""
    if value is None or (isinstance(value, str) and not value.strip()):
        problems.add(path, "missing")
        return None
    if not isinstance(value, str) or not value.strip().isprintable():
        problems.add(path, f"{value!a}: expected one line of printable text")
        return None
    return value.strip()


def check_currency(value: object, path: str, problems: Problems) -> None:
    """Refuses every currency but US dollars."""
    if value != CURRENCY:
        problems.add(path, f"{value!r}; only {CURRENCY} is supported, convert at the source")


def unknown_keys(
    mapping: Mapping[str, object], known: Sequence[str], path: str, problems: Problems
) -> None:
    """Refuses keys that the format does not have."""
    for key in mapping:
        if key not in known:
            problems.add(f"{path}.{key}", f"unknown key (have: {', '.join(known)})")
