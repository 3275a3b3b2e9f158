"""Rounds half up, however large the amount is: rounded(value, step), short(value)."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

# With the usual 28 digits, Decimal.quantize raises where an amount has more than it can keep.
_WIDE: Final = Context(prec=200, rounding=ROUND_HALF_UP)


def rounded(value: Decimal, step: Decimal) -> Decimal:
    """The multiple of the step that is nearest, the larger one of two."""
    return value.quantize(step, context=_WIDE)


def short(value: Decimal) -> str:
    """The number with three significant digits, whole from 100 up, in plain notation."""
    if not value:
        return "0"
    places = max(0, 2 - value.adjusted())
    text = f"{rounded(value, Decimal(1).scaleb(-places)):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
