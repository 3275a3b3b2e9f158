"""A billing export is read to the cent, and held against the bill of its period by product."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.report.layout import Format
from cost.resources.estimate import Estimate, estimate
from cost.runs.invoice import (
    COLUMNS,
    Invoice,
    Product,
    Reconciliation,
    Verdict,
    product_of,
    read_invoice,
    reconcile,
    render_reconciliation,
)
from cost.runs.spend import Spend, spend
from infra.cli.main import app
from stacks.errors import UserError
from tests.unit.cost.run_stacks import at, l40s, rates_of, use

Ours = tuple[Estimate, Spend]
SINCE, UNTIL = at(0, day=1), at(0, day=2)
HEADER = (
    "BilledCost,BillingCurrency,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ServiceName,"
    "ChargeDescription,ListCost"
)


def row(usd: str, service: str, what: str, *, hour: int = 0, category: str = "Usage",
        listed: str = "", hours: int = 1) -> str:  # fmt: skip
    start = f"2026-11-0{1 + hour // 24}T{hour % 24:02d}:00:00Z"
    end = f"2026-11-0{1 + (hour + hours) // 24}T{(hour + hours) % 24:02d}:00:00Z"
    return f"{usd},USD,{category},{start},{end},{service},{what},{listed}"


def written(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "export.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture
def ours(public_key_file: Path) -> tuple[Estimate, Spend]:
    """The seed's stack on a day on which nobody ran anything."""
    rates = rates_of(l40s())
    return estimate(rates.spec, rates.book), spend(rates, [], since=SINCE, until=UNTIL)


def exact(found: Reconciliation) -> list[str]:
    """Rows of a day that bill every product just as we price it."""
    names = {
        Product.COMPUTE: ("Compute", "GPU NVIDIA L40S"),
        Product.DISKS: ("Compute", "Network SSD disk"),
        Product.FILESYSTEMS: ("Compute", "Shared filesystem SSD"),
        Product.OBJECT_STORAGE: ("Object Storage", "Standard"),
        Product.NETWORK: ("Virtual Networks", "Public IPv4"),
        Product.KUBERNETES: ("Managed Service for Kubernetes", "Control plane"),
        Product.REGISTRY: ("Container Registry", "Storage"),
    }
    return [row(str(each.ours_usd), *names[each.product], hours=24) for each in found.rows]


def held(ours: tuple[Estimate, Spend], invoice: Invoice) -> Reconciliation:
    return reconcile(*ours, invoice)


def whole_day(tmp_path: Path, ours: tuple[Estimate, Spend], *more: str) -> Reconciliation:
    """A day billed as priced here, with more rows."""
    empty = held(ours, read_invoice(written(tmp_path, row("0", "Compute", "GPU", hours=24))))
    return held(ours, read_invoice(written(tmp_path, *exact(empty), *more)))


def test_our_products_add_up_to_the_bill_of_the_period(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    found = whole_day(tmp_path, ours)
    assert found.ours_usd.quantize(Decimal("1e-9")) == ours[1].bill_usd.quantize(Decimal("1e-9"))
    assert found.verdict is Verdict.PASS, render_reconciliation(found)


def test_nodes_beyond_the_fixed_ones_count_on_both_sides_of_the_sum(
    tmp_path: Path, public_key_file: Path
) -> None:
    spec = l40s()
    rates = rates_of(spec)
    nodes = [f"worker-{number}" for number in range(9)]
    busy = spend(rates, [use("1", at(1, day=1), at(3, day=1), nodes)], since=SINCE, until=UNTIL)
    assert busy.extra_nodes_usd > 0
    priced = estimate(spec, rates.book)
    found = reconcile(
        priced, busy, read_invoice(written(tmp_path, row("0", "Compute", "GPU", hours=24)))
    )
    assert abs(found.ours_usd - busy.bill_usd) < Decimal("1e-9")


def test_a_product_that_is_billed_higher_fails_and_says_how_much(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    found = whole_day(tmp_path, ours, row("500", "Compute", "vCPU", hour=1))
    (compute,) = [each for each in found.rows if each.product is Product.COMPUTE]
    assert (compute.verdict, found.verdict) == (Verdict.FAIL, Verdict.FAIL)
    assert abs(compute.difference_usd - 500) < Decimal("1e-9")
    assert "more was up than is declared now" in compute.why


@pytest.mark.parametrize("hour", [0, 24])
def test_a_row_of_one_moment_counts_at_either_end_of_the_period(
    hour: int, tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    """A purchase has no length: it was in no sum and no note, and the rest agreed."""
    bought = row("500", "Compute", "vCPU", category="Purchase", hour=hour, hours=0)
    found = whole_day(tmp_path, ours, bought)
    assert found.verdict is Verdict.FAIL
    assert abs(found.theirs_usd - found.ours_usd - 500) < Decimal("1e-9")


def test_a_row_of_the_moment_that_ends_a_period_is_of_the_next_one(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    """It would be in the sums of both months."""
    bought = row("500", "Compute", "vCPU", category="Purchase", hour=24, hours=0)
    later = row("9", "Compute", "vCPU", hour=24, hours=1)
    assert whole_day(tmp_path, ours, bought, later).verdict is Verdict.PASS


def test_a_discount_is_told_by_its_list_price(tmp_path: Path, ours: tuple[Estimate, Spend]) -> None:
    empty = held(ours, read_invoice(written(tmp_path, row("0", "Compute", "GPU", hours=24))))
    usd = {each.product: each.ours_usd for each in empty.rows}[Product.COMPUTE]
    cheap = row(str(usd / 2), "Compute", "GPU", listed=str(usd), hours=24)
    found = held(ours, read_invoice(written(tmp_path, cheap)))
    (compute,) = [each for each in found.rows if each.product is Product.COMPUTE]
    assert compute.verdict is Verdict.FAIL
    assert "a discount of 50.0 %, which contract_prices can declare" in compute.why


def test_what_the_stack_does_not_declare_is_named(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    found = whole_day(tmp_path, ours, row("9", "Managed Service for MLflow", "server"))
    (other,) = [each for each in found.rows if each.product is Product.OTHER]
    assert (other.ours_usd, other.theirs_usd, other.verdict) == (0, 9, Verdict.FAIL)
    assert "the stack declares none" in other.why


def test_tax_and_credits_stand_beside_and_fail_nothing(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    tax = row("100", "Compute", "VAT", category="Tax")
    credit = row("-50", "Compute", "grant", category="Credit")
    found = whole_day(tmp_path, ours, tax, credit)
    assert found.verdict is Verdict.PASS
    assert found.beside_usd == {"Credit": Decimal(-50), "Tax": Decimal(100)}


def test_an_export_of_half_the_period_is_not_run(
    tmp_path: Path, ours: tuple[Estimate, Spend]
) -> None:
    found = held(ours, read_invoice(written(tmp_path, row("9", "Compute", "GPU", hours=12))))
    assert found.verdict is Verdict.NOT_RUN
    assert "not over the whole period" in found.notes[0]
    assert {each.verdict for each in found.rows} == {Verdict.NOT_RUN}


@pytest.mark.parametrize(
    ("names", "product"),
    [
        (("Compute", "Network SSD disk"), Product.DISKS),
        (("Compute", "Network HDD"), Product.DISKS),
        (("Compute", "Shared Filesystem SSD"), Product.FILESYSTEMS),
        (("Compute", "GPU NVIDIA H100 SXM"), Product.COMPUTE),
        (("Compute", "Non-GPU AMD EPYC Genoa RAM"), Product.COMPUTE),
        (("Virtual Networks", "Public IPv4 address"), Product.NETWORK),
        (("Object Storage", "Standard storage"), Product.OBJECT_STORAGE),
        (("Container Registry", "Storage"), Product.REGISTRY),
        (("Managed Service for Kubernetes",), Product.KUBERNETES),
        (("Audit Logs",), Product.OTHER),
    ],
)
def test_a_rows_names_say_its_product(names: tuple[str, ...], product: Product) -> None:
    assert product_of(names) is product


def test_every_problem_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        row("x", "Compute", "GPU"),
        row("1", "Compute", "GPU").replace("USD", "EUR"),
        row("1", "Compute", "GPU").replace("T00:00:00Z", "T99", 1),
        row("NaN", "Compute", "GPU"),
    )
    with pytest.raises(UserError) as refused:
        read_invoice(path)
    lines = str(refused.value).splitlines()
    assert lines[0].startswith(f"{path}:2: BilledCost: got 'x', expected an amount such as 1.35,")
    assert "BillingCurrency: got 'EUR', expected USD" in lines[1]
    assert "ChargePeriodStart: got" in lines[2]
    assert "got 'NaN'" in lines[3]


def test_other_columns_are_named_and_missing_ones_listed(tmp_path: Path) -> None:
    header = "Amount,Currency,From,To,Product"
    path = written(tmp_path, "1.5,USD,2026-11-01,2026-11-02,GPU", header=header)
    with pytest.raises(UserError, match="no column BilledCost, BillingCurrency"):
        read_invoice(path)
    found = read_invoice(
        path,
        {
            "BilledCost": "Amount",
            "BillingCurrency": "Currency",
            "ChargePeriodStart": "From",
            "ChargePeriodEnd": "To",
            "ServiceName": "Product",
        },
    )
    (line,) = found.lines
    assert (line.billed_usd, line.category, line.names) == (Decimal("1.5"), "Usage", ("GPU",))
    assert (found.since, found.until) == (SINCE, datetime(2026, 11, 2, tzinfo=UTC))
    with pytest.raises(UserError, match="--column Cost: not one of"):
        read_invoice(path, {"Cost": "Amount"})


def test_an_archive_of_packed_files_is_read_as_one(tmp_path: Path) -> None:
    text = "\n".join([HEADER, row("1", "Compute", "GPU")]) + "\n"
    path = tmp_path / "export.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        packed = gzip.compress(text.encode())
        for name, content in (("a.csv", text.encode()), ("b.csv.gz", packed)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert len(read_invoice(path).lines) == 2


def test_a_file_that_is_no_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_invoice(tmp_path / "nothing.csv")
    (tmp_path / "torn.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UserError, match="cannot be read"):
        read_invoice(tmp_path / "torn.tar.gz")
    with pytest.raises(UserError, match="has no row"):
        read_invoice(written(tmp_path))


def test_the_columns_are_those_of_focus() -> None:
    assert all(name[0].isupper() and name.isalpha() for name in COLUMNS)


def test_every_format_holds_each_product(tmp_path: Path, ours: tuple[Estimate, Spend]) -> None:
    found = whole_day(tmp_path, ours)
    plain = json.loads(render_reconciliation(found, Format.JSON))
    assert plain["verdict"] == "PASS"
    assert {each["product"] for each in plain["products"]} == {row.product for row in found.rows}
    assert render_reconciliation(found, Format.CSV).startswith("stack,since,until,product,")
    for each in (Format.TABLE, Format.MARKDOWN, Format.HTML):
        assert "Virtual machines" in render_reconciliation(found, each)


def test_the_verb_takes_the_exports_period_and_ends_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    path = written(tmp_path, row("9", "Compute", "GPU", hours=24))
    words = [
        "cost",
        "spend",
        "-s",
        "l40s-dev",
        "--ledger",
        "--invoice",
        str(path),
        "--format",
        "json",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout)
    assert (found["since"], found["until"]) == (SINCE.isoformat(), UNTIL.isoformat())
    refused = CliRunner().invoke(app, [*words, "--column", "BilledCost"])
    assert refused.exit_code == 2, "1 would say that the bill differs"
    assert "--column BilledCost: not OURS=THEIRS" in refused.stderr
