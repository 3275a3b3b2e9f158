"""Amounts are rounded half up, and no amount is too large for it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cost.report.layout import rounded, short


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [("0.125", "0.01", "0.13"), ("-0.125", "0.01", "-0.13"), ("1E+40", "0.01", f"1{'0' * 40}.00")],
)
def test_half_a_step_goes_away_from_zero_whatever_the_size(value: str, step: str, expected: str):
    assert str(rounded(Decimal(value), Decimal(step))) == expected


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"),
        ("0.00012345", "0.000123"),
        ("0.2500", "0.25"),
        ("12.34", "12.3"),
        ("12.00", "12"),
        ("0.0125", "0.0125"),
        ("2.345", "2.35"),
        ("4200.4", "4,200"),
        ("-3.14159", "-3.14"),
    ],
)
def test_a_short_number_has_three_digits_and_no_zeros_behind_them(value: str, text: str):
    """The tables of a load test and of the advisor write one figure one way."""
    assert short(Decimal(value)) == text
