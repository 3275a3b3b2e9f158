"""A spreadsheet that opens the bill reads text and numbers, and runs nothing."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.report.layout import csv_text


@pytest.mark.feature("S000-112")
@pytest.mark.parametrize(
    "text",
    [
        "=1+1",
        "+cmd",
        "-cmd|' /C calc'!A0",
        "@SUM(A1)",
        "\t=1",
        "- ",
        "\n=1",
        "\uff1d1+1",
        "\uff20A",
    ],
)
def test_text_that_looks_like_a_formula_is_escaped(text: str):
    ((cell,),) = csv.reader(io.StringIO(csv_text([[text]])))
    assert cell == f"'{text}"


@pytest.mark.parametrize("number", [Decimal("-12.50"), "-12.50", "+3", 7, "0"])
def test_a_number_stays_a_number(number: object):
    assert csv_text([[number]]) == f"{number}\n"


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r")), min_size=1))
def test_no_cell_of_text_can_start_a_formula_and_none_is_lost(row: list[str]):
    (cells,) = csv.reader(io.StringIO(csv_text([[*row, "end"]])))
    for cell, text in zip(cells, row, strict=False):
        assert cell.removeprefix("'") == text or cell == text
        assert not cell.startswith(("=", "@", "\t"))


def test_nothing_is_an_empty_cell():
    assert csv_text([[None, "a"]]) == ",a\n"
