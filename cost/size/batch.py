"""The largest micro batch that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cost.size.memory import training_memory
from cost.size.shape import ModelShape
from cost.size.sharding import Sharding
from cost.size.training import Training


def largest_micro_batch(
    shape: ModelShape, training: Training, sharding: Sharding, *, usable: int
) -> int:
    """Rows per GPU and forward pass that fit on `usable` bytes; 0 where one row does not."""
    return greatest(
        lambda rows: (
            training_memory(shape, replace(training, micro_batch_size=rows), sharding).total
            <= usable
        )
    )


def greatest(fits: Callable[[int], bool]) -> int:
    """The greatest whole number from 1 that fits, 0 for none; `fits` never turns true again."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
