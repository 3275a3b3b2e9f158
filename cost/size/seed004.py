"""The rule of thumb of seed 004 (a deck of March 2024): `--rule seed004`.

The deck prints nine rows and no rule. This one gives all nine: weights are bytes times billions;
training takes 3.5 times that, rounded up to 1 or 1.5 times a power of two where that is at most a
tenth more; GPUs are the next power of two of memory by 40 GB. docs/sizing.md says where it is low.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from cost.size.errors import SizeError
from cost.size.shape import ModelShape
from cost.size.training import BITS, Dtype

GPU_MEMORY_GB: Final = 40
"""The deck's assumption; its own benchmark ran on GPUs of 80 GB."""
DTYPES: Final = (Dtype.FP32, Dtype.FP16, Dtype.INT8)
BILLIONS: Final = (7, 13, 70)
"""The deck's models: Llama-2."""
_FACTOR: Final = Fraction(7, 2)
_ROUNDED_UP_BY: Final = Fraction(11, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeckRow:
    """What the deck's rule says of one size and type, in its decimal GB."""

    billions: int
    dtype: Dtype
    weights_gb: int
    training_gb: int
    gpus: int


def deck_row(billions: int, dtype: Dtype, *, gpu_memory_gb: int = GPU_MEMORY_GB) -> DeckRow:
    """The deck's row, or what its rule gives for another size or another GPU."""
    problems = [
        f"{name}: got {value}, expected 1 or more"
        for name, value in (("billions of parameters", billions), ("gpu-mem", gpu_memory_gb))
        if value < 1
    ]
    if dtype not in DTYPES:
        problems.append(
            f"dtype: {dtype} is not a type that the deck prints; use one of {', '.join(DTYPES)}"
        )
    if problems:
        raise SizeError("\n".join(problems))
    weights_gb = billions * BITS[dtype] // 8
    training_gb = _deck_rounding(_FACTOR * weights_gb)
    return DeckRow(
        billions=billions,
        dtype=dtype,
        weights_gb=weights_gb,
        training_gb=training_gb,
        gpus=_next_power_of_two(-(-training_gb // gpu_memory_gb)),
    )


def deck_table(*, gpu_memory_gb: int = GPU_MEMORY_GB) -> tuple[DeckRow, ...]:
    """The nine rows of the deck, in its order."""
    return tuple(
        deck_row(billions, dtype, gpu_memory_gb=gpu_memory_gb)
        for dtype in DTYPES
        for billions in BILLIONS
    )


def billions_of(shape: ModelShape) -> int:
    """The size that a model is called by, as the deck does: 70 for Llama-2-70b with its 69."""
    named = re.search(r"(?<![\d.])(\d+)b$", shape.name, re.IGNORECASE)
    return int(named.group(1)) if named else max(1, round(shape.parameters / 10**9))


def _deck_rounding(amount_gb: Fraction) -> int:
    power = _next_power_of_two(ceil(amount_gb))
    steps = (Fraction(3 * power, 4), Fraction(power))
    round_number = next(step for step in steps if step >= amount_gb)
    return ceil(round_number if round_number <= amount_gb * _ROUNDED_UP_BY else amount_gb)


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
