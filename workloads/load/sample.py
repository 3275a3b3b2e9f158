"""What one request showed, on its own clock: every latency counts from the intended start."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

OK = "ok"
REJECTED = "rejected"
"""Answered 429: the server protects itself. Counted apart from errors."""
TIMEOUT = "timeout"


@dataclass(slots=True, kw_only=True)
class Sample:
    """One request of a run; times are of time.perf_counter."""

    intended_s: float
    """When it had to be sent; in a closed loop: when it was."""
    is_measured: bool
    """Whether it counts; requests of the warm-up do not."""
    sent_s: float = 0.0
    ended_s: float = 0.0
    outcome: str = OK
    """ok, rejected, timeout, or the class of the error: connect, tls, disconnected, malformed,
    stream_error, empty, http_<status>."""
    detail: str = ""
    times_s: Sequence[float] = field(default_factory=lambda: array("d"))
    """When each piece of the answer came."""
    prompt_tokens: int | None = None
    """As the server counted them; None where it did not."""
    cached_tokens: int = 0
    output_tokens: int = 0
    retry_after_s: float | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the whole answer came."""
        return self.outcome == OK

    @property
    def is_error(self) -> bool:
        """Whether it failed by itself; a refusal or a timeout says that there is too much."""
        return self.outcome not in (OK, REJECTED, TIMEOUT)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None when none came."""
        return self.times_s[0] - self.intended_s if len(self.times_s) else None

    @property
    def e2e_s(self) -> float:
        """Seconds to the end of the answer."""
        return self.ended_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds for each token after the first; None for an answer of one."""
        if self.output_tokens < 2 or len(self.times_s) < 2:
            return None
        return (self.times_s[-1] - self.times_s[0]) / (self.output_tokens - 1)
