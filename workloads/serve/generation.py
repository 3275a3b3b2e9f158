"""What is asked of an engine and what comes back, without HTTP and without tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from workloads.serve.grammar import Constraint

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
    number: int = field(default_factory=lambda: next(_numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token with its natural logarithm of probability."""

    token: str
    logprob: float
    data: bytes
    top: tuple[tuple[str, float, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an answer ended without an end."""

    message: str
    code: Literal["out_of_memory", "engine_error", "server_stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one turn added to an answer; the last one has `finish` or `failure`."""

    text: str = ""
    num_tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    failure: Failure | None = None

    @property
    def is_last(self) -> bool:
        """Whether nothing follows."""
        return self.finish is not None or self.failure is not None


Sink = Callable[[Delta], None]


class QueueFullError(Exception):
    """No row is free and no more may wait."""


class StoppingError(Exception):
    """The engine takes nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy an engine is."""

    num_running: int
    num_waiting: int
    kv_used_tokens: int
    kv_total_tokens: int


class Engine(Protocol):
    """What the HTTP side knows of an engine; sinks are called from its own thread."""

    def submit(self, asked: Sequence[tuple[Generation, Sink]]) -> None:
        """Take all of them or none (QueueFullError, StoppingError)."""
        ...

    def cancel(self, number: int) -> None:
        """Forget one; its sink is not called again."""
        ...

    def load(self) -> Load:
        """Return how busy it is."""
        ...
