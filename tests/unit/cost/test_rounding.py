"""Amounts are rounded half up, and no amount is too large for it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cost.rounding import rounded


@pytest.mark.parametrize(
    ("value", "step", "expected"),
    [("0.125", "0.01", "0.13"), ("-0.125", "0.01", "-0.13"), ("1E+40", "0.01", f"1{'0' * 40}.00")],
)
def test_half_a_step_goes_away_from_zero_whatever_the_size(value: str, step: str, expected: str):
    assert str(rounded(Decimal(value), Decimal(step))) == expected
