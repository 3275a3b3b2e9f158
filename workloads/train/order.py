"""The order in which rows are trained on: one stream, equal at any world size.

Owns the data position: the number of rows that all ranks together have consumed. Row k of the
stream is row k mod n of epoch k div n's permutation. The rows of a step do not depend on how many
ranks share them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Shuffled rows."""

    packs: Sequence[Any]
    seed: int
    end: int | None = None
    """Rows after which the stream ends, epochs times rows; None: endless."""
    length: Callable[[Any], int] = lambda row: row.num_tokens
    """Tokens of a row, by which the rows of one step are put together."""

    def rows(self, start: int, count: int) -> list[Any]:
        """Return `count` rows from stream position `start`, fewer at the end."""
        size = len(self.packs)
        stop = start + count if self.end is None else min(start + count, self.end)
        return [
            self.packs[_permutation(size, self.seed, position // size)[position % size]]
            for position in range(start, stop)
        ]

    def micro_batches(
        self, position: int, *, rank: int, world_size: int, micro_batch_size: int, num_rows: int
    ) -> list[list[Any]]:
        """Return this rank's micro batches of the step of `num_rows` rows from `position` on.

        All ranks together see the same rows at any world size, and each as many micro batches as
        the others: one that comes out short gets empty lists. Rows of like length share a micro
        batch, which saves padding and leaves the sum of the step's gradient as it is.
        """
        rows = sorted(self.rows(position, num_rows), key=self.length, reverse=True)
        num_micro = -(-len(rows) // (world_size * micro_batch_size))
        mine = rows[rank::world_size]
        return [
            mine[index * micro_batch_size : (index + 1) * micro_batch_size]
            for index in range(num_micro)
        ]


@lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    order = list(range(size))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return tuple(order)
