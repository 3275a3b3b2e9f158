"""Our figures held against an invoice: reconcile(estimate, spend, invoice) -> Reconciliation.

The sum of our products is the bill of the period that `soperator cost spend` shows.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

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
from cost.runs.invoice import USAGE, Invoice, InvoiceLine
from cost.runs.spend import Spend

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


_OF_SECTION: Final[Mapping[Section, Product]] = {
    Section.COMPUTE: Product.COMPUTE,
    Section.BOOT_DISKS: Product.DISKS,
    Section.WORKER_DISKS: Product.DISKS,
    Section.FILESYSTEMS: Product.FILESYSTEMS,
    Section.OBJECT_STORAGE: Product.OBJECT_STORAGE,
    Section.NETWORK: Product.NETWORK,
    Section.KUBERNETES: Product.KUBERNETES,
    Section.REGISTRY: Product.REGISTRY,
}
_VOLUMES: Final = "charts.volumes"
"""Priced beside Kubernetes here; the cloud sells plain disks."""
# The first that is found in a row's names says its product. Disks and filesystems come before
# machines, as all three are sold by the service Compute.
_WORDS: Final = (
    (Product.FILESYSTEMS, r"file ?system"),
    (Product.OBJECT_STORAGE, r"object storage|bucket"),
    (Product.REGISTRY, r"registry"),
    (Product.DISKS, r"\bdisks?\b|block storage|network[- ]ssd|\bvolumes?\b"),
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
    notes: list[str] = []
    if not covered:
        notes.append(
            f"The export reaches from {invoice.since:%Y-%m-%d %H:%M} to "
            f"{invoice.until:%Y-%m-%d %H:%M} UTC, not over the whole period: nothing is told by it."
        )
    if not sold:
        notes.append("No row of what is sold lies inside the period: nothing is told by it.")
    if cut:
        notes.append(f"{len(cut)} rows lie across the edge of the period and are left out.")
    if invoice.num_repeated:
        notes.append(
            f"{invoice.num_repeated} rows are there more than once, the same in every column, and "
            "counted each time: was a file put into the export twice?"
        )
    if len(invoice.accounts) > 1:
        notes.append(
            f"The export holds {len(invoice.accounts)} accounts or projects by its SubAccountId: "
            "export the stack's own."
        )
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
        notes=tuple(notes),
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
    hours = Decimal((spend.until - spend.since) // timedelta(microseconds=1)) / 3_600_000_000
    usd: dict[Product, Decimal] = defaultdict(Decimal)
    unpriced: dict[Product, list[str]] = defaultdict(list)
    for line in estimate.components:
        product = Product.DISKS if line.id == _VOLUMES else _OF_SECTION[line.section]
        if line.monthly_low_usd is None:
            unpriced[product].append(line.name)
        else:
            usd[product] += line.monthly_low_usd / HOURS_PER_MONTH * hours
    usd[Product.COMPUTE] += spend.extra_nodes_usd
    usd[Product.DISKS] += spend.extra_disks_usd
    if spend.foreign_nodes:
        unpriced[Product.COMPUTE].append(f"nodes {', '.join(spend.foreign_nodes)}")
    return usd, unpriced


def _inside(
    invoice: Invoice, spend: Spend
) -> tuple[tuple[InvoiceLine, ...], tuple[InvoiceLine, ...]]:
    """Rows of the period, and those that lie across its edge."""
    touching = [
        line
        for line in invoice.lines
        if line.started_at < spend.until and line.ended_at > spend.since
    ]
    inside: list[InvoiceLine] = []
    cut: list[InvoiceLine] = []
    for line in touching:
        whole = line.started_at >= spend.since and line.ended_at <= spend.until
        (inside if whole else cut).append(line)
    return tuple(inside), tuple(cut)


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
    report = Report(
        tables=(_table(found),),
        notes=tuple(_notes(found)),
        data=lambda: _plain(found),
        rows=lambda: _csv_rows(found),
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


def _csv_rows(found: Reconciliation) -> Iterator[Sequence[object]]:
    yield _COLUMNS
    period = (found.stack_name, found.since.isoformat(), found.until.isoformat())
    for row in found.rows:
        yield (*period, *_plain_row(row).values())
