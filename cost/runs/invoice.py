"""What the provider billed: read_invoice(file) -> Invoice, from a billing export in FOCUS 1.2 CSV.

Nebius exports its usage so (docs.nebius.com/signup-billing/usage/export, read 2026-11-21): hourly
rows, in UTC, of everything that moves an invoice. The columns are those of
focus.finops.org/focus-specification/v1-2 (read 2026-11-21); another file is read where its columns
are named: `{"BilledCost": "Amount"}`.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, Final

from stacks.errors import UserError
from stacks.files import read_bytes

NEEDED: Final = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd")
NAMES: Final = (
    "ServiceName",
    "ServiceSubcategory",
    "ChargeDescription",
    "SkuMeter",
    "ResourceType",
)
"""What says which product a row is of; one of these must be there."""
OTHERS: Final = ("ChargeCategory", "ListCost", "SubAccountId")
COLUMNS: Final = (*NEEDED, *NAMES, *OTHERS)
USAGE: Final = frozenset({"Usage", "Purchase"})
"""ChargeCategory of what is sold."""
CATEGORIES: Final = (*sorted(USAGE, reverse=True), "Tax", "Credit", "Adjustment")
_AMOUNT: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_MOST_DIGITS: Final = 15
"""Of an amount, before its point."""
_MOST_BYTES: Final = 2**28
"""Of an export, unpacked: a month of three hundred resources by the hour, a kilobyte a row."""
_MOST_PROBLEMS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLine:
    """One row of the export."""

    started_at: datetime
    ended_at: datetime
    billed_usd: Decimal
    list_usd: Decimal | None
    """At list prices; None where the export does not say."""
    category: str
    names: tuple[str, ...]
    """Service, description, meter and resource type, as far as they are given."""
    account: str
    """What the provider bills it to, such as a project; empty where the export does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Every row of an export."""

    file: str
    lines: tuple[InvoiceLine, ...]
    num_repeated: int
    """Rows that are the same as an earlier one in every column, also of another file."""

    @property
    def sold(self) -> tuple[InvoiceLine, ...]:
        """Rows of what is sold: a tax may be of a month of which nothing else is here."""
        return tuple(line for line in self.lines if line.category in USAGE)

    @property
    def since(self) -> datetime:
        """Start of the first row of what is sold; of any, where none is."""
        return min(line.started_at for line in self.sold or self.lines)

    @property
    def until(self) -> datetime:
        """End of the last row of what is sold; of any, where none is."""
        return max(line.ended_at for line in self.sold or self.lines)

    @property
    def accounts(self) -> tuple[str, ...]:
        """What its rows are billed to, each once."""
        return tuple(sorted({line.account for line in self.lines if line.account}))


def read_invoice(path: Path, columns: Mapping[str, str] | None = None) -> Invoice:
    """The export in a .csv, .csv.gz or .tar.gz file; `columns`: a FOCUS column -> theirs.

    Everything that is wrong is told at once.
    """
    unknown = sorted(set(columns or {}) - set(COLUMNS))
    if unknown:
        raise UserError(f"--column {unknown[0]}: not one of {', '.join(COLUMNS)}")
    lines: list[InvoiceLine] = []
    problems: list[str] = []
    seen: set[int] = set()
    num_rows = 0
    for name, content in _files(path):
        num_rows += _read(name, content, columns or {}, lines, problems, seen)
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        said = problems[:_MOST_PROBLEMS] + ([f"{path}: and {more} more"] if more > 0 else [])
        raise UserError("\n".join(said))
    if not lines:
        raise UserError(f"{path}: has no row; export the period again")
    return Invoice(file=str(path), lines=tuple(lines), num_repeated=num_rows - len(seen))


def _read(
    name: str,
    content: bytes,
    columns: Mapping[str, str],
    lines: list[InvoiceLine],
    problems: list[str],
    seen: set[int],
) -> int:
    """Adds the rows of one file; how many they are."""
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    rows = csv.reader(text, strict=True)
    try:
        headings = [each.strip() for each in next(rows, list[str]())]
    except (csv.Error, UnicodeDecodeError) as error:
        problems.append(f"{name}:1: {error}; export it again")
        return 0
    given = set(headings)
    theirs = {ours: columns.get(ours, ours) for ours in COLUMNS}
    missing = [ours for ours in NEEDED if theirs[ours] not in given]
    if not any(theirs[ours] in given for ours in NAMES):
        missing.append(f"any of {', '.join(NAMES)}")
    if missing:
        problems.append(
            f"{name}: no column {', '.join(missing)} (has: {', '.join(sorted(given)) or 'none'}); "
            "give an export in FOCUS 1.2, or name the columns with --column BilledCost=THEIRS"
        )
        return 0
    twice = sorted(each for each in theirs.values() if headings.count(each) > 1)
    if twice:
        problems.append(f"{name}: column {twice[0]} is there twice; which one counts is not known")
        return 0
    places = {ours: headings.index(their) for ours, their in theirs.items() if their in given}
    num_rows = 0
    try:
        for row in rows:
            if not row:
                continue
            num_rows += 1
            seen.add(hash(tuple(row)))
            try:
                if len(row) != len(headings):
                    raise ValueError(
                        f"has {len(row)} fields where the first line has {len(headings)}: a row "
                        "that was cut, or an amount with an unquoted comma"
                    )
                values = {ours: row[place].strip() for ours, place in places.items()}
                lines.append(_line({**dict.fromkeys(COLUMNS, ""), **values}))
            except ValueError as error:
                problems.append(f"{name}:{rows.line_num}: {error}")
    except (csv.Error, UnicodeDecodeError) as error:
        problems.append(f"{name}:{rows.line_num}: {error}; export it again")
    return num_rows


def _line(values: Mapping[str, str]) -> InvoiceLine:
    if values["BillingCurrency"] != "USD":
        raise ValueError(
            f"BillingCurrency: got {values['BillingCurrency']!r}, expected USD, which every price "
            "here is in"
        )
    started_at, ended_at = (_time(name, values) for name in NEEDED[2:])
    if ended_at < started_at:
        raise ValueError(f"ChargePeriodEnd {ended_at:%Y-%m-%dT%H:%M}: before ChargePeriodStart")
    given = values["ChargeCategory"]
    category = next((each for each in CATEGORIES if each.lower() == (given or "Usage").lower()), "")
    if not category:
        raise ValueError(f"ChargeCategory: got {given!r}, expected one of {', '.join(CATEGORIES)}")
    return InvoiceLine(
        started_at=started_at,
        ended_at=ended_at,
        billed_usd=_money("BilledCost", values),
        list_usd=_money("ListCost", values) if values["ListCost"] else None,
        category=category,
        names=tuple(values[name] for name in NAMES if values[name]),
        account=values["SubAccountId"],
    )


def _time(name: str, values: Mapping[str, str]) -> datetime:
    try:
        found = datetime.fromisoformat(values[name])
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name}: got {values[name]!r}, expected a time such as 2026-11-01T00:00:00Z"
        ) from None


def _money(name: str, values: Mapping[str, str]) -> Decimal:
    # Decimal also takes `1_000`, other digits than ours and NaN, which no bill means.
    if _AMOUNT.fullmatch(values[name]):
        amount = Decimal(values[name])
        if not amount or -_MOST_DIGITS * 2 < amount.adjusted() < _MOST_DIGITS:
            return amount
    raise ValueError(
        f"{name}: got {values[name][:40]!r}, expected an amount such as 1.35, without separators "
        "of thousands"
    )


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every CSV file in the export."""
    left = _MOST_BYTES
    try:
        export = io.BytesIO(read_bytes(path, at_most_bytes=_MOST_BYTES))
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            with tarfile.open(fileobj=export) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith((".csv", ".csv.gz")):
                        content = archive.extractfile(member)
                        assert content is not None, "it is a file"
                        found = _content(content, member.name, left, path)
                        left -= len(found)
                        yield f"{path}:{member.name}", found
        else:
            yield str(path), _content(export, path.name, left, path)
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error


def _content(source: IO[bytes], name: str, most: int, path: Path) -> bytes:
    """The bytes, unpacked; never more of them in memory than an export may have."""
    if name.endswith(".gz"):
        with gzip.open(source) as unpacked:
            found = unpacked.read(most + 1)
    else:
        found = source.read(most + 1)
    if len(found) > most:
        raise UserError(
            f"{path}: has more than {_MOST_BYTES // 2**20} MiB of rows; export a shorter period, "
            "of this project only"
        )
    return found
