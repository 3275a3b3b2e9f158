"""The order in which packed rows are trained on: one endless stream, equal at any world size.

Owns the data position: the number of packed rows that all ranks together have consumed. Row k of
the stream is row k mod n of epoch k div n's permutation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from workloads.data.packing import Pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Shuffled packed rows."""

    packs: Sequence[Pack]
    seed: int

    def rows(self, start: int, count: int) -> list[Pack]:
        """Return `count` rows from stream position `start`."""
        size = len(self.packs)
        return [
            self.packs[_permutation(size, self.seed, position // size)[position % size]]
            for position in range(start, start + count)
        ]

    def micro_batches(
        self, position: int, *, rank: int, world_size: int, micro_batch_size: int, num_micro: int
    ) -> list[list[Pack]]:
        """Return this rank's micro batches of the train step that starts at `position`.

        The step's rows are dealt in the stream's order, so all ranks together see the same rows at
        any world size as long as the rows per step are equal.
        """
        rows = self.rows(position, micro_batch_size * num_micro * world_size)
        mine = rows[rank::world_size]
        return [
            mine[first : first + micro_batch_size]
            for first in range(0, len(mine), micro_batch_size)
        ]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return tuple(order)
