"""Figures are written with the digits that their docstrings promise."""

from __future__ import annotations

import pytest

from infra.reports.page.training import number, signed


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (0.0004, "0.000400"),
        (-0.00012345, "-0.000123"),
        (0.0123, "0.0123"),
        (0.125, "0.125"),
        (9.876, "9.88"),
        (125.04, "125.0"),
        (1234.5, "1,234"),
    ],
)
def test_a_number_has_three_or_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_small_difference_keeps_its_sign_and_its_digits() -> None:
    """A learning rate, or the gain of a metric between 0 and 1, is not 0.000."""
    assert (signed(0.0004), signed(-0.0004), signed(0)) == ("+0.000400", "-0.000400", "0")
