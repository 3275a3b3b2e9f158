"""What the provider billed: read_invoice(file) -> Invoice, from a billing export in FOCUS 1.2 CSV.

Nebius exports its usage so (docs.nebius.com/signup-billing/usage/export, read 2026-11-21): hourly
rows, in UTC, of everything that moves an invoice. Owns the format: which columns are read
(focus.finops.org/focus-specification/v1-2, read 2026-11-21), and what is refused. Another file is
read where its columns are named: `{"BilledCost": "Amount"}`. Compares nothing (reconcile.py).
"""

from __future__ import annotations

import csv
import gzip
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Final

NEEDED: Final = ("BilledCost", "BillingCurrency", "ChargePeriodStart", "ChargePeriodEnd")
NAMES: Final = (
    "ServiceName",
    "ServiceSubcategory",
    "ChargeDescription",
    "SkuMeter",
    "ResourceType",
)
"""What says which product a row is of; one of these must be there."""
OTHERS: Final = ("ChargeCategory", "ListCost")
COLUMNS: Final = (*NEEDED, *NAMES, *OTHERS)
USAGE: Final = frozenset({"Usage", "Purchase"})
"""ChargeCategory of what is sold; the others are Tax, Credit and Adjustment."""
_MOST_BYTES: Final = 2**30
_MOST_PROBLEMS: Final = 5


class InvoiceError(ValueError):
    """A file that is no billing export that can be read; one line a problem."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    """Every row of an export."""

    file: str
    lines: tuple[InvoiceLine, ...]

    @property
    def since(self) -> datetime:
        """Start of the first row."""
        return min(line.started_at for line in self.lines)

    @property
    def until(self) -> datetime:
        """End of the last row."""
        return max(line.ended_at for line in self.lines)


def read_invoice(path: Path, columns: Mapping[str, str] | None = None) -> Invoice:
    """The export in a .csv, .csv.gz or .tar.gz file; `columns`: a FOCUS column -> theirs.

    Everything that is wrong is told at once.
    """
    unknown = sorted(set(columns or {}) - set(COLUMNS))
    if unknown:
        raise InvoiceError(f"--column {unknown[0]}: not one of {', '.join(COLUMNS)}")
    lines: list[InvoiceLine] = []
    problems: list[str] = []
    for name, text in _texts(path):
        _read(name, text, columns or {}, lines, problems)
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        said = problems[:_MOST_PROBLEMS] + ([f"{path}: and {more} more"] if more > 0 else [])
        raise InvoiceError("\n".join(said))
    if not lines:
        raise InvoiceError(f"{path}: has no row; export the period again")
    return Invoice(file=str(path), lines=tuple(lines))


def _read(
    name: str,
    text: str,
    columns: Mapping[str, str],
    lines: list[InvoiceLine],
    problems: list[str],
) -> None:
    rows = csv.DictReader(io.StringIO(text))
    given = set(rows.fieldnames or ())
    theirs = {ours: columns.get(ours, ours) for ours in COLUMNS}
    missing = [ours for ours in NEEDED if theirs[ours] not in given]
    if not any(theirs[ours] in given for ours in NAMES):
        missing.append(f"any of {', '.join(NAMES)}")
    if missing:
        problems.append(
            f"{name}: no column {', '.join(missing)} (has: {', '.join(sorted(given)) or 'none'}); "
            "give an export in FOCUS 1.2, or name the columns with --column BilledCost=THEIRS"
        )
        return
    for number, row in enumerate(rows, start=2):
        try:
            lines.append(_line({ours: (row.get(theirs[ours]) or "").strip() for ours in COLUMNS}))
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")


def _line(values: Mapping[str, str]) -> InvoiceLine:
    if values["BillingCurrency"] != "USD":
        raise ValueError(
            f"BillingCurrency: got {values['BillingCurrency']!r}, expected USD, which every price "
            "here is in"
        )
    started_at, ended_at = (_time(name, values) for name in NEEDED[2:])
    if ended_at < started_at:
        raise ValueError(f"ChargePeriodEnd {ended_at:%Y-%m-%dT%H:%M}: before ChargePeriodStart")
    return InvoiceLine(
        started_at=started_at,
        ended_at=ended_at,
        billed_usd=_money("BilledCost", values),
        list_usd=_money("ListCost", values) if values["ListCost"] else None,
        category=values["ChargeCategory"] or "Usage",
        names=tuple(values[name] for name in NAMES if values[name]),
    )


def _time(name: str, values: Mapping[str, str]) -> datetime:
    try:
        found = datetime.fromisoformat(values[name])
    except ValueError:
        raise ValueError(
            f"{name}: got {values[name]!r}, expected a time such as 2026-11-01T00:00:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _money(name: str, values: Mapping[str, str]) -> Decimal:
    try:
        amount = Decimal(values[name])
    except InvalidOperation:
        raise ValueError(f"{name}: got {values[name]!r}, expected an amount such as 1.35") from None
    if not amount.is_finite():
        raise ValueError(f"{name}: got {values[name]!r}, expected an amount such as 1.35")
    return amount


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every CSV file in the export."""
    try:
        if path.name.endswith((".tar.gz", ".tgz", ".tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    if member.isfile() and member.name.endswith((".csv", ".csv.gz")):
                        content = archive.extractfile(member)
                        assert content is not None, "it is a file"
                        yield f"{path}:{member.name}", _text(content.read(_MOST_BYTES), member.name)
        else:
            yield str(path), _text(path.read_bytes(), path.name)
    except (OSError, EOFError, tarfile.TarError, UnicodeDecodeError) as error:
        raise InvoiceError(f"{path}: cannot be read: {error}") from error


def _text(content: bytes, name: str) -> str:
    plain = gzip.decompress(content) if name.endswith(".gz") else content
    return plain.decode("utf-8-sig")
