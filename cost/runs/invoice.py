"""What the provider billed, held against our figures: read_invoice(file), reconcile(...).

Nebius exports its usage in FOCUS 1.2 CSV (docs.nebius.com/signup-billing/usage/export, read
2026-11-21): hourly rows, in UTC, of everything that moves an invoice. The columns are those of
focus.finops.org/focus-specification/v1-2 (read 2026-11-21); another file is read where its columns
are named: `{"BilledCost": "Amount"}`. The sum of our products is the bill of the period that
`soperator cost spend` shows.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import (
    Format,
    Report,
    Table,
    exact_money,
    picked,
    render_report,
    usd_text,
)
from cost.resources.estimate import Estimate
from cost.resources.lines import Section
from cost.runs.spend import Spend, span_s
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
    theirs = {ours: columns.get(ours, ours) for ours in COLUMNS}
    num_rows = 0
    try:
        headings = [each.strip() for each in next(rows, list[str]())]
        missing = [ours for ours in NEEDED if theirs[ours] not in headings]
        if not any(theirs[ours] in headings for ours in NAMES):
            missing.append(f"any of {', '.join(NAMES)}")
        if missing:
            problems.append(
                f"{name}: no column {', '.join(missing)} (has: "
                f"{', '.join(sorted(set(headings))) or 'none'}); give an export in FOCUS 1.2, or "
                "name the columns with --column BilledCost=THEIRS"
            )
            return 0
        if twice := sorted(each for each in theirs.values() if headings.count(each) > 1):
            why = "which one counts is not known"
            problems.append(f"{name}: column {twice[0]} is there twice; {why}")
            return 0
        places = {ours: headings.index(it) for ours, it in theirs.items() if it in headings}
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
        problems.append(f"{name}:{max(1, rows.line_num)}: {error}; export it again")
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


TOLERANCE: Final = Decimal("0.02")
"""Ours: hours that began or ended inside an hour, and amounts rounded a row."""
_CENT: Final = Decimal("0.01")
_ZERO: Final = Decimal(0)
_HOUR: Final = timedelta(hours=1)


class Product(StrEnum):
    """What is sold, as an invoice and a stack both can name it."""

    COMPUTE = "Virtual machines"
    DISKS = "Disks"
    FILESYSTEMS = "Shared filesystems"
    OBJECT_STORAGE = "Object storage"
    NETWORK = "Networking"
    KUBERNETES = "Kubernetes"
    REGISTRY = "Container registry"
    OTHER = "Anything else"


class Verdict(StrEnum):
    """Whether a product's amounts agree."""

    PASS = "PASS"  # noqa: S105 (a verdict, not a password)
    FAIL = "FAIL"
    NOT_RUN = "NOT RUN"


_VOLUMES: Final = "charts.volumes"
"""Priced beside Kubernetes here; the cloud sells plain disks."""
_DISKS: Final = (Section.BOOT_DISKS, Section.WORKER_DISKS)
"""Every other section of the bill is a product of the same name."""
# The first that is found in a row's names says its product. Disks and filesystems come before
# machines, as all three are sold by the service Compute.
_WORDS: Final = (
    (Product.FILESYSTEMS, r"file ?system"),
    (Product.OBJECT_STORAGE, r"object storage|bucket"),
    (Product.REGISTRY, r"registry"),
    (Product.DISKS, r"\bdisks?\b|block storage|network[- ](ssd|hdd)|\bvolumes?\b"),
    (Product.NETWORK, r"\bip\b|\bipv[46]\b|address|egress|traffic|load balancer|virtual network"),
    (Product.COMPUTE, r"gpu|v?cpu|\bram\b|memory|virtual machine|\binstance"),
    (Product.KUBERNETES, r"kubernetes|mk8s"),
    (Product.COMPUTE, r"compute"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow:
    """One product: what the stack was to cost and what was billed."""

    product: Product
    ours_usd: Decimal
    theirs_usd: Decimal
    verdict: Verdict
    why: str
    """Empty where they agree, and where the export tells nothing of the period."""

    @property
    def difference_usd(self) -> Decimal:
        """Theirs less ours."""
        return self.theirs_usd - self.ours_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """An invoice held against the stack's bill of the same period."""

    stack_name: str
    file: str
    since: datetime
    until: datetime
    rows: tuple[ProductRow, ...]
    beside_usd: Mapping[str, Decimal]
    """Tax, credits and adjustments, by ChargeCategory: our figures know none."""
    notes: tuple[str, ...]

    @property
    def ours_usd(self) -> Decimal:
        """The bill of the period."""
        return sum((row.ours_usd for row in self.rows), _ZERO)

    @property
    def theirs_usd(self) -> Decimal:
        """What was billed for products."""
        return sum((row.theirs_usd for row in self.rows), _ZERO)

    @property
    def verdict(self) -> Verdict:
        """FAIL where a product fails; NOT RUN where one could not be told, or none is there."""
        found = {row.verdict for row in self.rows}
        if Verdict.FAIL in found:
            return Verdict.FAIL
        return Verdict.PASS if found == {Verdict.PASS} else Verdict.NOT_RUN


def reconcile(
    estimate: Estimate, spend: Spend, invoice: Invoice, *, tolerance: Decimal = TOLERANCE
) -> Reconciliation:
    """Every product that is declared or billed, in the order of Product."""
    inside, cut = _inside(invoice, spend)
    sold = [line for line in inside if line.category in USAGE]
    theirs, listed = _sums(sold)
    at_edge, _ = _sums([line for line in cut if line.category in USAGE])
    ours, unpriced = _ours(estimate, spend)
    beside: dict[str, Decimal] = defaultdict(Decimal)
    for line in inside:
        if line.category not in USAGE:
            beside[line.category] += line.billed_usd
    covered = invoice.since - spend.since < _HOUR and spend.until - invoice.until < _HOUR
    notes = {
        f"The export reaches from {invoice.since:%Y-%m-%d %H:%M} to {invoice.until:%Y-%m-%d %H:%M} "
        "UTC, not over the whole period: nothing is told by it.": not covered,
        "No row of what is sold lies inside the period: nothing is told by it.": not sold,
        f"{len(cut)} rows lie across the edge of the period and are left out.": cut,
        f"{invoice.num_repeated} rows are there more than once, the same in every column, and "
        "counted each time: was a file put into the export twice?": invoice.num_repeated,
        f"The export holds {len(invoice.accounts)} accounts or projects by its SubAccountId: "
        "export the stack's own.": len(invoice.accounts) > 1,
    }
    rows = [
        _row(product, ours[product], theirs[product], at_edge[product], listed[product],
             unpriced[product], tolerance)
        for product in Product
        if ours[product] or theirs[product] or unpriced[product]
    ]  # fmt: skip
    if not covered or not sold:
        rows = [replace(each, verdict=Verdict.NOT_RUN, why="") for each in rows]
    return Reconciliation(
        stack_name=spend.stack_name,
        file=invoice.file,
        since=spend.since,
        until=spend.until,
        rows=tuple(rows),
        beside_usd=dict(sorted(beside.items())),
        notes=tuple(note for note, is_so in notes.items() if is_so),
    )


def product_of(names: Iterable[str]) -> Product:
    """The product that a row's names are of."""
    text = " ".join(names).casefold()
    for product, words in _WORDS:
        if re.search(words, text):
            return product
    return Product.OTHER


def _ours(
    estimate: Estimate, spend: Spend
) -> tuple[Mapping[Product, Decimal], Mapping[Product, list[str]]]:
    """US dollars of each product over the period, and lines that have none."""
    hours = span_s(spend.until - spend.since) / 3_600
    usd: dict[Product, Decimal] = defaultdict(Decimal)
    unpriced: dict[Product, list[str]] = defaultdict(list)
    for line in estimate.components:
        is_disk = line.id == _VOLUMES or line.section in _DISKS
        product = Product.DISKS if is_disk else Product[line.section.name]
        if line.low_usd is None:
            unpriced[product].append(line.name)
        else:
            usd[product] += line.low_usd / HOURS_PER_MONTH * hours
    usd[Product.COMPUTE] += spend.extra_nodes_usd
    usd[Product.DISKS] += spend.extra_disks_usd
    if spend.foreign_nodes:
        unpriced[Product.COMPUTE].append(f"nodes {', '.join(spend.foreign_nodes)}")
    return usd, unpriced


def _inside(invoice: Invoice, spend: Spend) -> tuple[list[InvoiceLine], list[InvoiceLine]]:
    """Rows of the period, and those that lie across its edge."""
    inside: list[InvoiceLine] = []
    cut: list[InvoiceLine] = []
    for line in invoice.lines:
        # One of a single moment, such as a purchase, is of the period that it begins or the last.
        begins = line.started_at < spend.until or invoice.until <= spend.until
        if begins and spend.since <= line.started_at and line.ended_at <= spend.until:
            inside.append(line)
        elif line.started_at < spend.until and line.ended_at > spend.since:
            cut.append(line)
    return inside, cut


def _sums(
    lines: Sequence[InvoiceLine],
) -> tuple[Mapping[Product, Decimal], Mapping[Product, Decimal | None]]:
    """Billed, and at list prices where every row of the product says so."""
    billed: dict[Product, Decimal] = defaultdict(Decimal)
    listed: dict[Product, Decimal | None] = defaultdict(Decimal)
    for line in lines:
        product = product_of(line.names)
        billed[product] += line.billed_usd
        before = listed[product]
        listed[product] = (
            None if before is None or line.list_usd is None else before + line.list_usd
        )
    return billed, listed


def _row(
    product: Product,
    ours: Decimal,
    theirs: Decimal,
    at_edge: Decimal,
    listed: Decimal | None,
    unpriced: Sequence[str],
    tolerance: Decimal,
) -> ProductRow:
    verdict, why = Verdict.FAIL, ""
    # A part of what lies across the edge may make the amounts agree.
    least, most = sorted((theirs, theirs + at_edge))
    if _agree(ours, theirs, tolerance):
        verdict = Verdict.PASS
        if unpriced:
            why = f"without {', '.join(unpriced)}, which have no price here and cost nothing"
    elif unpriced:
        verdict = Verdict.NOT_RUN
        why = f"no price here for {', '.join(unpriced)}: declare one in contract_prices"
    elif at_edge and (least < ours < most or _agree(ours, theirs + at_edge, tolerance)):
        verdict = Verdict.NOT_RUN
        why = (
            f"rows of {at_edge:,.2f} USD lie across the edge of the period, and a part of them "
            "would agree: choose --since and --until where rows begin and end"
        )
    elif not theirs:
        why = "nothing was billed: it was not up, or is billed under a name that is not known here"
    elif not ours:
        why = "the stack declares none: something else of the project, or a stack that is gone"
    elif listed and _agree(ours, listed, tolerance):
        why = (
            f"at list prices it is {listed:,.2f} USD, as here: a discount of "
            f"{100 * (listed - theirs) / listed:.1f} %, which contract_prices can declare"
        )
    else:
        reason, than = (
            ("the stack was not up all the time (--since)", "lower")
            if theirs < ours
            else ("more was up than is declared now", "higher")
        )
        why = (
            f"billed {100 * theirs / ours:.1f} % of it: {reason}, or its prices are {than} than "
            "here (soperator cost prices --refresh)"
        )
    return ProductRow(product=product, ours_usd=ours, theirs_usd=theirs, verdict=verdict, why=why)


def _agree(ours: Decimal, theirs: Decimal, tolerance: Decimal) -> bool:
    return abs(theirs - ours) <= max(_CENT, tolerance * max(abs(ours), abs(theirs)))


SCHEMA_VERSION: Final = 1
_COLUMNS: Final = (
    *("stack", "since", "until", "product", "ours_usd", "invoice_usd", "difference_usd"),
    *("verdict", "why"),
)


def render_reconciliation(found: Reconciliation, format: Format = Format.TABLE) -> str:
    """The comparison in the format, ending in a newline."""
    period = (found.stack_name, found.since.isoformat(), found.until.isoformat())
    report = Report(
        tables=(_table(found),),
        notes=tuple(_notes(found)),
        data=lambda: _plain(found),
        rows=lambda: [_COLUMNS, *((*period, *_plain_row(row).values()) for row in found.rows)],
    )
    return render_report(report, format)


def _table(found: Reconciliation) -> Table:
    rows: list[tuple[str, ...]] = []
    for name, each, why in (
        *((row.product, row, row.why) for row in found.rows),
        ("Bill of the period", found, ""),
    ):
        difference = each.theirs_usd - each.ours_usd
        sign = "+" if difference > 0 else "-" if difference < 0 else ""
        ours, theirs = usd_text(each.ours_usd), usd_text(each.theirs_usd)
        rows.append((name, each.verdict, ours, theirs, f"{sign}{usd_text(abs(difference))}"))
        rows += [(f"  {why}",)] if why else []
    return Table(
        title=f"{found.stack_name} against its invoice, {found.since:%Y-%m-%d %H:%M} to "
        f"{found.until:%Y-%m-%d %H:%M} UTC (USD without tax)",
        headings=("Product", "Verdict", "Ours", "Invoice", "Difference"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _notes(found: Reconciliation) -> Iterator[str]:
    yield from found.notes
    for category, usd in found.beside_usd.items():
        yield f"{category} of {usd_text(usd)} is on the invoice and in no figure of ours."
    yield (
        "The export must hold the stack's project and nothing else; ours takes the stack as "
        "declared now and up all the time."
    )


def _plain(found: Reconciliation) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        **picked(
            found, "stack=stack_name file since until verdict ours_usd invoice_usd=theirs_usd"
        ),
        "products": [_plain_row(row) for row in found.rows],
        "beside_usd": {name: exact_money(usd) for name, usd in found.beside_usd.items()},
        **picked(found, "notes"),
    }


def _plain_row(row: ProductRow) -> dict[str, object]:
    paths = "product ours_usd invoice_usd=theirs_usd difference_usd verdict"
    return {**picked(row, paths), "why": row.why or None}
