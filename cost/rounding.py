"""Rounds an amount half up to a step, however large it is: rounded(value, step)."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final

# With the usual 28 digits, Decimal.quantize raises where an amount has more than it can keep.
_WIDE: Final = Context(prec=200, rounding=ROUND_HALF_UP)


def rounded(value: Decimal, step: Decimal) -> Decimal:
    """The multiple of the step that is nearest, the larger one of two."""
    return value.quantize(step, context=_WIDE)
