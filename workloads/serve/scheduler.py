"""What is asked of an engine and what comes back; which request has which row, and who waits.

First come, first served for rows and for reading; every row that has its prompt read decodes in
every turn. Rows in use are always 0..n-1: a row that ends is filled by the last one. No tensors.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from workloads.serve.sampling import Constraint


FinishReason = Literal["stop", "length"]
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a token is chosen; temperature 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    """Over 1: what stands in the prompt or the answer is less likely; 1 changes nothing."""
    min_p: float = 0.0
    """Least probability of a token, as a share of the most likely one's."""
    min_tokens: int = 0
    """Tokens before which no stop ends the answer."""
    stop_token_ids: tuple[int, ...] = ()
    """End the answer as the model's own end of turn does, also where that is ignored."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One answer to be written."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    """Write to the limit: for measurements."""
    num_logprobs: int | None = None
    """Alternatives told beside each token; None: no log probabilities at all."""
    constraint: Constraint | None = None
    """Which tokens may come next, where the answer must have a form; of this answer alone."""
    is_tuned: bool = False
    """Whether the adapter's rows answer."""
    number: int = field(init=False, default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token with its natural logarithm of probability."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


RETRY_AFTER_S = 2
"""What a client that met a full queue or a stopping server is told to wait."""


@dataclass(slots=True, kw_only=True)
class ApiError(Exception):
    """One answer that is no chat."""

    status: int
    message: str
    code: str
    param: str | None = None

    def __str__(self) -> str:
        return self.message

    def to_json(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status)
                or ("server_error" if self.status >= 500 else "invalid_request_error"),
                "param": self.param,
                "code": self.code,
            }
        }

    @property
    def headers(self) -> dict[str, str]:
        if self.status in (429, 503):
            return {"retry-after": str(RETRY_AFTER_S)}
        return {"www-authenticate": "Bearer"} if self.status == 401 else {}


_TYPES = {401: "authentication_error", 429: "rate_limit_error", 504: "timeout_error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one turn added to an answer; the last one has `finish` or `failure`."""

    text: str = ""
    num_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    failure: ApiError | None = None


Sink = Callable[[Delta], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy an engine is."""

    num_running: int
    num_waiting: int
    kv_used_tokens: int
    kv_total_tokens: int


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
    """Tokens `start` to `end` of a sequence: of its prompt, or the last one that was written."""

    sequence: Sequence
    start: int
    end: int

    @property
    def ids(self) -> Items[int]:
        prompt_ids = self.sequence.asked.prompt_ids[self.start : self.end]
        return prompt_ids or self.sequence.output_ids[-1:]

    @property
    def is_last(self) -> bool:
        """Whether the next token follows from this chunk."""
        return self.end >= len(self.sequence.asked.prompt_ids)


@dataclass(slots=True, kw_only=True, eq=False)
class Scheduler:
    """Rows and queue of one engine; used by one thread at a time."""

    num_rows: int
    max_queue: int
    prefill_tokens: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    """By row."""
    _arrived: list[Sequence] = field(default_factory=list)
    """Running sequences, the oldest first."""

    def add(self, sequences: Items[Sequence]) -> None:
        """Queue all of them, or none: ApiError."""
        free = self.num_rows - len(self.running)
        room = self.max_queue + free - len(self.waiting)
        if len(sequences) > room:
            text = (
                f"{len(self.running)} requests run and {len(self.waiting)} wait; at most "
                f"{self.max_queue} may wait; try again later"
            )
            raise ApiError(status=429, message=text, code="queue_full")
        self.waiting.extend(sequences)

    def reading(self) -> list[Chunk]:
        """Give free rows to those who wait; return what of prompts is read next."""
        while self.waiting and len(self.running) < self.num_rows:
            sequence = self.waiting.popleft()
            sequence.row = len(self.running)
            self.running.append(sequence)
            self._arrived.append(sequence)
        chunks: list[Chunk] = []
        left = self.prefill_tokens
        for sequence in self._arrived:
            if left and not sequence.has_read:
                start = sequence.num_cached
                end = min(len(sequence.asked.prompt_ids), start + left)
                chunks.append(Chunk(sequence=sequence, start=start, end=end))
                left -= end - start
        return chunks

    def decoding(self) -> list[Chunk]:
        """Return the next token of every row up to the last one that has its prompt read.

        A row among them that still reads its prompt goes on by one: a pass over rows side by side
        needs no copy of them.
        """
        end = max((each.row + 1 for each in self.running if each.has_read), default=0)
        return [
            Chunk(sequence=each, start=each.num_cached, end=each.num_cached + 1)
            for each in self.running[:end]
        ]

    def remove(self, sequence: Sequence) -> Sequence | None:
        """Free the row or the place in the queue; return who takes the row, from behind the last.

        None where nobody does, or without a token in the cache.
        """
        if sequence.row < 0:
            self.waiting.remove(sequence)
            return None
        self._arrived.remove(sequence)
        last = self.running.pop()
        row, sequence.row = sequence.row, -1
        if last is sequence:
            return None
        self.running[row], last.row = last, row
        return last if last.num_cached else None

    @property
    def num_cached(self) -> int:
        """Tokens in the cache, of all rows in use."""
        return sum(each.num_cached for each in self.running)
