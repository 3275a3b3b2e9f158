"""Which sequence has which row, what is read and decoded next, and who waits. No tensors.

Owns fairness: first come, first served for rows and for reading; every row that has its prompt read
decodes in every turn. Rows in use are always 0..n-1: a row that ends is filled by the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from workloads.serve.generation import Generation, QueueFullError


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One answer on its way."""

    asked: Generation
    row: int = -1
    num_cached: int = 0
    """Tokens whose keys and values are in the cache."""
    output_ids: list[int] = field(default_factory=list)

    @property
    def has_read(self) -> bool:
        """Whether the whole prompt is in the cache."""
        return self.num_cached >= len(self.asked.prompt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Prompt tokens `start` to `end` of a sequence."""

    sequence: Sequence
    start: int
    end: int

    @property
    def is_last(self) -> bool:
        """Whether the next token follows from this chunk."""
        return self.end == len(self.sequence.asked.prompt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the model does next: reads `chunks`, then decodes one token for each of `decoding`."""

    chunks: tuple[Chunk, ...]
    decoding: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """The row `source` takes the place of the row `target`, which ended."""

    source: int
    target: int
    num_tokens: int


class Scheduler:
    """Rows and queue of one engine; used by one thread at a time."""

    def __init__(self, *, num_rows: int, max_queue: int, prefill_tokens: int) -> None:
        self._num_rows = num_rows
        self._max_queue = max_queue
        self._prefill_tokens = prefill_tokens
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """By row."""
        self._arrived: list[Sequence] = []
        """Running sequences, the oldest first."""

    def add(self, sequences: Items[Sequence]) -> None:
        """Queue all of them, or none: QueueFullError."""
        free = self._num_rows - len(self.running)
        room = self._max_queue + free - len(self.waiting)
        if len(sequences) > room:
            raise QueueFullError(
                f"{len(self.running)} requests run and {len(self.waiting)} wait; "
                f"at most {self._max_queue} may wait"
            )
        self.waiting.extend(sequences)

    def plan(self) -> Turn | None:
        """Give free rows to those who wait and return the next turn; None: nothing to do."""
        while self.waiting and len(self.running) < self._num_rows:
            sequence = self.waiting.popleft()
            sequence.row = len(self.running)
            self.running.append(sequence)
            self._arrived.append(sequence)
        if not self.running:
            return None
        decoding = tuple(each for each in self.running if each.has_read)
        chunks: list[Chunk] = []
        left = self._prefill_tokens
        for sequence in self._arrived:
            if left and not sequence.has_read:
                start = sequence.num_cached
                end = min(len(sequence.asked.prompt_ids), start + left)
                chunks.append(Chunk(sequence=sequence, start=start, end=end))
                left -= end - start
        return Turn(chunks=tuple(chunks), decoding=decoding)

    def remove(self, sequence: Sequence) -> Move | None:
        """Free the row or the place in the queue; return the move that the cache must make."""
        if sequence.row < 0:
            self.waiting.remove(sequence)
            return None
        self._arrived.remove(sequence)
        last = self.running.pop()
        row, sequence.row = sequence.row, -1
        if last is sequence:
            return None
        self.running[row] = last
        move = Move(source=last.row, target=row, num_tokens=last.num_cached)
        last.row = row
        return move if move.num_tokens else None

    @property
    def num_cached(self) -> int:
        """Tokens in the cache, of all rows in use."""
        return sum(each.num_cached for each in self.running)
