"""What a preview prints, byte by byte, and what every format must keep."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cost.bill.bill import Bill, render
from cost.bill.bill import bill as make_bill
from cost.prices.book import layered
from cost.report.layout import WIDTH, Format, Report, Table, render_report
from tests import SHIPPED
from tests.unit.cost.conftest import record

ENDINGS = {
    Format.TABLE: "txt",
    Format.JSON: "json",
    Format.MARKDOWN: "md",
    Format.CSV: "csv",
    Format.HTML: "html",
}
TRAIN = {"kind": "train", "job": "finetune", "job_id": "11"}


Billed = Callable[[str], Bill]


def rendered(billed: Billed, name: str, format: Format) -> str:
    spec = billed(name).spec
    return render(make_bill(spec, layered(spec), [record(), record(**TRAIN)]), format)


@pytest.mark.feature(
    "S000-82",
    "S000-83",
    "S000-84",
    "S000-85",
    "S000-86",
    "S000-87",
    "S000-88",
    "S000-89",
    "S000-91",
    "S000-92",
    "S000-93",
    "S000-94",
    "S000-95",
    "S000-96",
    "S000-97",
    "S000-98",
    "S000-99",
    "S000-100",
    "S000-101",
    "S000-102",
    "S000-103",
    "S000-104",
    "S000-105",
    "S000-106",
    "S000-107",
    "S000-108",
    "S000-109",
    "S000-110",
    "S000-111",
    "S000-112",
    "S000-113",
    "S000-118",
    "S000-120",
)
@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("format", Format)
def test_the_bill_of_each_stack_is_the_reviewed_one(
    billed: Billed,
    golden: Callable[[str, str], None],
    name: str,
    format: Format,
):
    golden(f"cost/{name}.{ENDINGS[format]}", rendered(billed, name, format))


@pytest.mark.parametrize("name", SHIPPED)
def test_text_fits_the_diagnostics_of_a_preview(billed: Billed, name: str):
    text = rendered(billed, name, Format.TABLE)
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= WIDTH


def with_first(bill: Bill, heading: str | None = None, **changes: str) -> Bill:
    """The bill with its first line changed."""
    first, *rest = bill.estimate.components
    components = (replace(first, **changes), *rest)
    spec = replace(bill.spec, bill_heading=heading)
    total = replace(bill.estimate, spec=spec, components=components)
    return replace(bill, estimate=total)


def test_a_long_nodeset_name_is_wrapped_instead_of_breaking_the_table(billed: Billed):
    bill = with_first(billed("l40s-dev"), name="worker-" + "x" * 43 + " (gpu-l40s-d)")
    lines = render(bill).splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    (row,) = [line for line in lines if "13,340.90" in line]
    assert row.startswith("  worker-xxx")
    assert "(gpu-l40s-d)" in lines[lines.index(row) + 2]


def test_every_line_has_its_quantity_unit_price_and_both_amounts(billed: Billed):
    row = next(
        line for line in render(billed("l40s-dev")).splitlines() if "system (cpu-d3)" in line
    )
    assert " ".join(row.split()) == (
        "system (cpu-d3) 3..9 x 8vcpu-32gb 0.1984/node/h 0.595..1.786 434.50..1,303.49"
    )


def test_the_bill_of_a_stack_that_pays_nothing_says_so_first(billed: Billed):
    heading = "What this shape would cost on Nebius; this machine bills nothing."
    assert rendered(billed, "local", Format.TABLE).startswith(heading)
    assert "bills nothing" not in rendered(billed, "l40s-dev", Format.TABLE)


def test_an_assumed_speed_is_called_assumed_with_its_source(billed: Billed):
    text = rendered(billed, "l40s-dev", Format.TABLE)
    assert "Optimized Target: 200 tokens/s, assumed: published run (sar/nebius)" in text


def test_a_measured_speed_carries_its_date_and_job(billed: Billed):
    text = " ".join(rendered(billed, "local", Format.TABLE).split())
    assert "12.3 tokens/s, measured on 2026-11-21: job 12 of stack local on cpu" in text


@pytest.mark.feature("S000-113")
def test_json_holds_the_stack_output_and_every_line(billed: Billed):
    bill = billed("l40s-dev")
    document = json.loads(rendered(billed, "l40s-dev", Format.JSON))
    assert document["cost"]["subtotal_high_usd"] == "19039.60"
    assert len(document["components"]) == len(bill.estimate.components)
    assert all(line["prices"][0]["source"] for line in document["components"])
    assert document["stack"] == "l40s-dev"


@pytest.mark.feature("S000-112")
def test_csv_rows_have_the_columns_of_their_heading(billed: Billed):
    rows = list(csv.reader(io.StringIO(rendered(billed, "l40s-dev", Format.CSV))))
    gap = rows.index([])
    assert {len(row) for row in rows[:gap]} == {10}
    assert {len(row) for row in rows[gap + 1 :]} == {10}


def test_names_cannot_break_out_of_the_html(billed: Billed):
    bill = with_first(billed("l40s-dev"), name="<script>alert(1)</script>", heading="<b>free</b>")
    text = render(bill, Format.HTML)
    tags: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)

    Tags().feed(text)
    assert not tags & {"script", "b"}


def test_a_pipe_in_a_name_does_not_split_a_markdown_cell(billed: Billed):
    bill = with_first(billed("l40s-dev"), name="a|b")
    assert "| a\\|b |" in render(bill, Format.MARKDOWN)


def test_a_table_of_the_widest_figures_keeps_to_its_columns():
    """A stack of 1,000 nodes printed 109 of 108."""
    cells = ("worker-of-a-long-name (gpu-h100-sxm)", *("x" * n for n in (22, 22, 22, 23)))
    table = Table(title="t", headings=("Name", *"abcd"), rows=(cells,), num_text_columns=1)
    text = render_report(Report(heading=None, tables=(table,), notes=()), Format.TABLE)
    assert max(map(len, text.splitlines())) <= WIDTH
