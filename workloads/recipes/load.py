"""Settings of the `load` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeVar

from workloads.recipes.reader import (
    AtLeastOne,
    Bound,
    NotNegative,
    Positive,
    Settings,
    below_one,
    least,
    require,
)

T = TypeVar("T")
MOST_TOKENS = 10**7
"""The longest context of a model that is sold: Llama 4 Scout's (Meta, 2025-04)."""
Tokens = Annotated[T, Bound(f"1 to {MOST_TOKENS}", lambda value: 1 <= value <= MOST_TOKENS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Settings):
    """The server under load, and what it runs on: the client cannot see that."""

    url: str | None = None
    """Address up to /v1, such as http://127.0.0.1:7860/v1."""
    serve_job: str | None = None
    """Instead of a url: id of a running job of workloads.serve; its endpoint.json is read."""
    model: str | None = None
    """Name in the API; None: the last that the server lists (beside a base the tuned one)."""
    api_key_file: str | None = None
    """File with the key; the variable SOPERATOR_SERVE_API_KEY wins."""
    engine: str | None = None
    """Engine in the run record, such as vllm; None: what the server tells of itself."""
    platform: str | None = None
    """Platform of the server's node, such as gpu-l40s-d; None: cost/ takes no speed."""
    preset: str | None = None
    """Preset of the server's node."""

    def _check(self) -> None:
        require(
            not (self.url and self.serve_job),
            "url: given together with serve_job; keep the one that says where the server is",
        )
        url = self.url or ""
        require("@" not in url, "url: has an @; leave user and password out: results show the url")
        require(
            not url or "@" in url or url.startswith(("http://", "https://")),
            f"url: got {url!r}, expected http://HOST:PORT/v1 or https://...",
        )
        require(
            self.serve_job is None or self.serve_job.replace("-", "").isalnum(),
            f"serve_job: got {self.serve_job!r}, expected a job id such as 12",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths(Settings):
    """How many tokens a prompt or an answer has."""

    mean: Tokens[int | None] = None
    """None: from the chat profile of the stack."""
    distribution: Literal["fixed", "uniform", "lognormal"] = "fixed"
    spread: float = 0.0
    """Standard deviation over mean; needed by uniform and lognormal."""
    most: Tokens[int | None] = None
    """Longest that is drawn; None: four times the mean."""

    def _check(self) -> None:
        require(
            (self.spread > 0) == (self.distribution != "fixed") and self.spread <= 2,
            f"spread: got {self.spread:g} for {self.distribution}; fixed has 0, the others over 0 "
            "to 2",
        )
        # A uniform distribution from 0 to twice its mean has a spread of 1 / sqrt(3).
        require(
            self.distribution != "uniform" or self.spread <= 0.577,
            f"spread: got {self.spread:g}, expected at most 0.577 for uniform",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts(Settings):
    """What the prompts are made of."""

    tokenizer: str | None = None
    """Model whose tokenizer counts them; None: the recipe's model."""
    rows: str | None = None
    """Instead: a .jsonl file of chats, `{"messages": [...]}`; their lengths are their own."""
    cached_share: Annotated[float | None, below_one] = None
    """Share of each prompt that all have in common; None: the chat profile's, else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop(Settings):
    """Requests that come when they come, whether or not the server keeps up."""

    shares: tuple[float, ...] = (0.5, 0.8)
    """Poisson rates as shares of the sweep's highest requests/s; empty: none."""
    rates_per_s: tuple[float, ...] = ()
    """Poisson rates in requests/s, instead of the shares."""
    trace: str | None = None
    """A .jsonl file with at_s and, where known, prompt_tokens and output_tokens."""
    requests: Annotated[int, least(2)] = 64
    """Measured arrivals of each Poisson rate."""

    def _check(self) -> None:
        for name in ("shares", "rates_per_s"):
            values = getattr(self, name)
            require(
                all(0 < value <= 10**5 for value in values),
                f"{name}: got {list(values)}, expected numbers over 0",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo(Settings):
    """What is promised; a bound that is None is not promised."""

    ttft_ms: Positive[float | None] = None
    tpot_ms: Positive[float | None] = None
    e2e_s: Positive[float | None] = None
    """None: the chat profile's max_answer_s, where there is one."""
    share: float = 0.99
    """Share of all requests that must keep every bound; refused and failed ones do not."""

    def _check(self) -> None:
        require(0 < self.share <= 1, f"share: got {self.share:g}, expected over 0 to 1")

    @property
    def is_declared(self) -> bool:
        """Whether anything is promised."""
        return not self.ttft_ms == self.tpot_ms == self.e2e_s == None  # noqa: E711


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig(Settings):
    """One load test: a sweep of closed loops for the curve, then open loops at given rates."""

    target: Target = field(default_factory=Target)
    prompts: Prompts = field(default_factory=Prompts)
    prompt_tokens: Lengths = field(default_factory=Lengths)
    output_tokens: Lengths = field(default_factory=Lengths)
    sweep: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Streams of each closed loop; 1 comes first, as reading and writing are told apart there."""
    requests_per_stream: AtLeastOne[int] = 4
    """Measured requests of each stream, and 8 at least in all."""
    warm_up_requests: NotNegative[int] = 1
    """Requests of each stream, and arrivals for each 16 of an open loop, that count nowhere."""
    open_loop: OpenLoop = field(default_factory=OpenLoop)
    slo: Slo = field(default_factory=Slo)
    require_slo: bool = False
    """Whether the job fails when no point keeps the SLO."""
    max_error_share: float = 0.01
    """Most requests that may fail; refusals (429) and timeouts of an overload are no failures."""
    timeout_s: Positive[float] = 600.0
    """From the intended start of a request to its end."""
    max_in_flight: AtLeastOne[int] = 1024
    """Connections at once; later requests wait here, on their own clock."""
    ignore_eos: bool = True
    """Whether answers are asked to be as long as drawn (vLLM and workloads.serve know it)."""
    seed: int = 0

    def _check(self) -> None:
        levels = list(self.sweep)
        require(
            levels[:1] == [1] and levels == sorted(set(levels)) and levels[-1] <= 4096,
            f"sweep: got {levels}, expected rising numbers from 1 to at most 4096",
        )
        require(
            0 <= self.max_error_share < 1,
            f"max_error_share: got {self.max_error_share:g}, expected 0 to below 1",
        )
