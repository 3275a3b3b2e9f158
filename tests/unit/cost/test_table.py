"""What a preview prints, byte by byte, and what every format must keep."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cost.table import WIDTH, Format, render
from cost.unit_costs import unit_costs
from stacks.load import stack_names
from tests.unit.cost.conftest import Priced, record

ENDINGS = {
    Format.TABLE: "txt",
    Format.JSON: "json",
    Format.MARKDOWN: "md",
    Format.CSV: "csv",
    Format.HTML: "html",
}
TRAIN = {"kind": "train", "job": "finetune", "job_id": "11"}


def rendered(priced: Callable[[str], Priced], name: str, format: Format) -> str:
    spec, bill = priced(name)
    return render(bill, unit_costs(spec, bill, [record(), record(**TRAIN)]), format)


@pytest.mark.parametrize("name", stack_names())
@pytest.mark.parametrize("format", Format)
def test_the_bill_of_each_stack_is_the_reviewed_one(
    priced: Callable[[str], Priced],
    golden: Callable[[str, str], None],
    name: str,
    format: Format,
):
    golden(f"cost/{name}.{ENDINGS[format]}", rendered(priced, name, format))


@pytest.mark.parametrize("name", stack_names())
def test_text_fits_the_diagnostics_of_a_preview(priced: Callable[[str], Priced], name: str):
    text = rendered(priced, name, Format.TABLE)
    assert text.isascii()
    assert max(len(line) for line in text.splitlines()) <= WIDTH


def test_a_long_nodeset_name_gives_way_instead_of_breaking_the_table(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("l40s-dev")
    first = replace(bill.components[0], name="worker-" + "x" * 43 + " (gpu-l40s-d)")
    bill = replace(bill, components=(first, *bill.components[1:]))
    lines = render(bill, unit_costs(spec, bill, [])).splitlines()
    assert max(len(line) for line in lines) <= WIDTH
    assert any("xxx..." in line and "$16,676.12" in line for line in lines)


def test_the_bill_of_a_stack_that_pays_nothing_says_so_first(priced: Callable[[str], Priced]):
    heading = "What this shape would cost on Nebius; this machine bills nothing."
    assert rendered(priced, "local", Format.TABLE).startswith(heading)
    assert "bills nothing" not in rendered(priced, "l40s-dev", Format.TABLE)


def test_an_assumed_speed_is_called_assumed_with_its_source(priced: Callable[[str], Priced]):
    text = rendered(priced, "l40s-dev", Format.TABLE)
    assert "Optimized Target: 200 tokens/s assumed: seed 000" in text


def test_a_measured_speed_carries_its_date_and_job(priced: Callable[[str], Priced]):
    text = " ".join(rendered(priced, "local", Format.TABLE).split())
    assert "12.25 tokens/s measured on 2026-11-21: job 12 of stack local on cpu" in text


def test_json_holds_the_stack_output_and_every_line(priced: Callable[[str], Priced]):
    spec, bill = priced("l40s-dev")
    document = json.loads(rendered(priced, "l40s-dev", Format.JSON))
    assert document["cost"]["monthly_low_usd"] == "18116.08"
    assert len(document["components"]) == len(bill.components)
    assert all(line["prices"][0]["source"] for line in document["components"])
    assert spec.name == document["stack"]


def test_csv_rows_have_the_columns_of_their_heading(priced: Callable[[str], Priced]):
    rows = list(csv.reader(io.StringIO(rendered(priced, "l40s-dev", Format.CSV))))
    gap = rows.index([])
    assert {len(row) for row in rows[:gap]} == {8}
    assert {len(row) for row in rows[gap + 1 :]} == {8}


def test_names_cannot_break_out_of_the_html(priced: Callable[[str], Priced]):
    spec, bill = priced("l40s-dev")
    first = replace(bill.components[0], name="<script>alert(1)</script>")
    bill = replace(bill, components=(first, *bill.components[1:]), heading="<b>free</b>")
    text = render(bill, unit_costs(spec, bill, []), Format.HTML)
    tags: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.add(tag)

    Tags().feed(text)
    assert not tags & {"script", "b"}


def test_a_pipe_in_a_name_does_not_split_a_markdown_cell(priced: Callable[[str], Priced]):
    spec, bill = priced("l40s-dev")
    first = replace(bill.components[0], name="a|b")
    bill = replace(bill, components=(first, *bill.components[1:]))
    assert "| a\\|b |" in render(bill, unit_costs(spec, bill, []), Format.MARKDOWN)
