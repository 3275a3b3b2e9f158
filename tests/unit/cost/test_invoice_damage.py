"""A billing export that is damaged, foreign or half of another is refused or told, never summed."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.resources.estimate import estimate
from cost.runs.invoice import Invoice, Product, Verdict, read_invoice, reconcile
from cost.runs.spend import spend
from infra.cli.main import app
from stacks.errors import UserError
from tests.unit.cost.run_stacks import l40s, rates_of
from tests.unit.cost.test_invoice import (
    HEADER,
    SINCE,
    Ours,
    exact,
    held,
    ours,
    row,
    whole_day,
    written,
)

__all__ = ["ours"]
LAST = "ChargePeriodStart,ChargePeriodEnd,BillingCurrency,ServiceName,BilledCost,ListCost"


def refused(path: Path) -> str:
    with pytest.raises(UserError) as problem:
        read_invoice(path)
    return str(problem.value)


@pytest.mark.parametrize(
    "amount", ["1_000", "\u0661\u0662", "1e99999", "1e15", "", "0x10", "1.2.3", "Infinity", "1 000"]
)
def test_an_amount_that_no_bill_means_is_refused(tmp_path: Path, amount: str) -> None:
    path = written(tmp_path, row(amount, "Compute", "GPU"))
    assert refused(path).startswith(f"{path}:2: BilledCost: got ")


@pytest.mark.parametrize("amount", ["-1.35", "+0.5", ".5", "1E-7", "0", "0.000000", "12."])
def test_an_amount_of_any_size_that_is_billed_is_read(tmp_path: Path, amount: str) -> None:
    (line,) = read_invoice(written(tmp_path, row(amount, "Compute", "GPU"))).lines
    assert line.billed_usd == Decimal(amount)


def test_a_row_that_does_not_fit_its_first_line_is_refused(tmp_path: Path) -> None:
    """As `1,000.50` without quotes would be one dollar, and a cut row one of no list price."""
    start = "2026-11-01T00:00:00Z,2026-11-01T01:00:00Z,USD,Compute"
    path = written(tmp_path, f"{start},1,000.50,2000.00", f"{start},1", header=LAST)
    over, under = refused(path).splitlines()
    assert over.startswith(f"{path}:2: has 7 fields where the first line has 6")
    assert under.startswith(f"{path}:3: has 5 fields where the first line has 6")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f'{HEADER}\n"1,USD,Usage'.encode(), ":2: unexpected end of data"),
        (f"{HEADER}\n1,USD,Usage,{'x' * 200_000}".encode(), "field larger than field limit"),
        (HEADER.encode("utf-16"), "codec can't decode"),
        (f"{HEADER},BilledCost\n".encode(), "column BilledCost is there twice"),
        (HEADER.replace(",", ";").encode(), "no column BilledCost"),
        (b"", "no column BilledCost"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_a_line(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "export.csv"
    path.write_bytes(content)
    assert said in refused(path)
    assert len(refused(path).splitlines()) == 1


def test_a_mark_of_byte_order_and_line_ends_of_windows_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "export.csv"
    text = f"{HEADER}\r\n{row('1', 'Compute', 'GPU')}\r\n\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [line.billed_usd for line in read_invoice(path).lines] == [Decimal(1)]


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(written(tmp_path, row("1", "Compute", "GPU")).read_bytes()))
    packed[20:40] = b"\xff" * 20
    path = tmp_path / "export.csv.gz"
    path.write_bytes(packed)
    assert "cannot be read" in refused(path)


@pytest.mark.parametrize("name", ["bomb.csv.gz", "bomb.tar.gz"])
def test_what_unpacks_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("cost.runs.invoice._MOST_BYTES", 2**20)
    bomb = gzip.compress(bytes(2**26))
    path = tmp_path / name
    path.write_bytes(bomb)
    if name.endswith(".tar.gz"):
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo("a.csv.gz")
            member.size = len(bomb)
            archive.addfile(member, io.BytesIO(bomb))
    tracemalloc.start()
    try:
        assert "has more than 1 MiB of rows" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_a_category_is_one_of_focus_in_any_case(tmp_path: Path) -> None:
    path = written(tmp_path, row("1", "Compute", "GPU", category="usage"))
    assert len(read_invoice(path).sold) == 1
    path = written(tmp_path, row("1", "Compute", "GPU", category="Rebate"))
    assert "ChargeCategory: got 'Rebate', expected one of Usage, Purchase, Tax" in refused(path)


def test_a_time_at_the_end_of_all_times_is_refused(tmp_path: Path) -> None:
    line = row("1", "Compute", "GPU").replace("2026-11-01T01:00:00Z", "9999-12-31T23:00:00-05:00")
    assert "ChargePeriodEnd: got" in refused(written(tmp_path, line))


def test_a_tax_of_the_whole_month_does_not_cover_it(tmp_path: Path, ours: Ours) -> None:
    tax = row("9", "Compute", "VAT", category="Tax", hours=24)
    invoice = read_invoice(written(tmp_path, row("1", "Compute", "GPU", hours=2), tax))
    assert (invoice.until - invoice.since).total_seconds() == 2 * 3600
    assert held(ours, invoice).verdict is Verdict.NOT_RUN


def test_an_export_of_no_usage_is_not_run_whatever_agrees(tmp_path: Path, ours: Ours) -> None:
    invoice = read_invoice(written(tmp_path, row("9", "Compute", "VAT", category="Tax", hours=24)))
    found = held(ours, invoice)
    assert found.verdict is Verdict.NOT_RUN
    assert "No row of what is sold lies inside the period: nothing is told by it." in found.notes


def test_rows_across_the_edge_leave_open_what_a_part_of_them_could_close(
    tmp_path: Path, ours: Ours
) -> None:
    """A week's row of the machines on a day: neither that they agree nor that they do not."""
    rows = [
        each for each in exact(held(ours, nothing(tmp_path))) if ",GPU NVIDIA L40S," not in each
    ]
    week = row("99999", "Compute", "GPU NVIDIA L40S").replace("11-01T01", "11-08T00")
    found = held(ours, read_invoice(written(tmp_path, *rows, week)))
    (compute,) = [each for each in found.rows if each.product is Product.COMPUTE]
    assert (compute.verdict, found.verdict) == (Verdict.NOT_RUN, Verdict.NOT_RUN)
    assert "rows of 99,999.00 USD lie across the edge" in compute.why
    small = week.replace("99999", "0.01")
    assert held(ours, read_invoice(written(tmp_path, *rows, small))).verdict is Verdict.FAIL


def test_rows_that_are_there_twice_are_told(tmp_path: Path, ours: Ours) -> None:
    once = row("500", "Compute", "vCPU", hour=1)
    found = whole_day(tmp_path, ours, once, once)
    assert found.verdict is Verdict.FAIL
    assert [note for note in found.notes if note.startswith("1 rows are there more than once")]


def test_rows_of_several_projects_are_told(tmp_path: Path, ours: Ours) -> None:
    rows = [row("1", "Compute", "GPU", hours=24) + f",project-{each}" for each in "ab"]
    found = held(ours, read_invoice(written(tmp_path, *rows, header=f"{HEADER},SubAccountId")))
    assert [note for note in found.notes if "holds 2 accounts or projects" in note]


def test_a_list_price_of_nothing_is_no_discount(tmp_path: Path, public_key_file: Path) -> None:
    """A minute of buckets is a part of a cent here, as near to nothing as to its price."""
    rates = rates_of(l40s())
    minute = spend(rates, [], since=SINCE, until=SINCE + timedelta(minutes=1))
    billed = row("5", "Object Storage", "Standard", listed="0").replace("T01:00", "T00:01")
    priced = estimate(rates.spec, rates.book)
    found = reconcile(priced, minute, read_invoice(written(tmp_path, billed)))
    (buckets,) = [each for each in found.rows if each.product is Product.OBJECT_STORAGE]
    assert 0 < buckets.ours_usd < Decimal("0.01")
    assert (buckets.verdict, buckets.theirs_usd) == (Verdict.FAIL, 5)


@pytest.mark.parametrize("percent", ["nan", "inf", "100", "-1"])
def test_a_tolerance_within_which_anything_agrees_is_refused(tmp_path: Path, percent: str) -> None:
    path = written(tmp_path, row("9", "Compute", "GPU", hours=24))
    words = [
        "cost",
        "spend",
        "-s",
        "l40s-dev",
        "--ledger",
        "--invoice",
        str(path),
        "--tolerance",
        percent,
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (1, 2)
    assert "--tolerance" in done.stderr


def nothing(tmp_path: Path) -> Invoice:
    """A day that bills nothing."""
    return read_invoice(written(tmp_path, row("0", "Compute", "GPU", hours=24)))
