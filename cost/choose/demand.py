"""What advice is asked for: a model, its chats, how many a day, and how fast answers must come.

Also what the GPU of a platform can do at most, and the share of it that serving reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from cost.chat.speeds import SECONDS_PER_DAY
from cost.report.layout import short
from cost.size.shape import ModelShape
from cost.traced import decimal
from stacks.catalog import REGIONS
from stacks.errors import UserError

PEAK_FACTOR: Final = Decimal(2)
"""Chats in the busiest hours over the mean of the day, where nothing else is said: assumed."""
SLO_NAMES: Final = ("ttft_p99_s", "tpot_p99_ms")
_MOST_TOKENS: Final = 10**6
_MOST_CHATS: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Bounds on 99 of 100 answers; None bounds nothing."""

    ttft_p99_s: Decimal | None = None
    """Seconds to the first token."""
    tpot_p99_ms: Decimal | None = None
    """Milliseconds for each further token."""

    def broken(self, ttft_p99_s: Decimal | None, tpot_p99_ms: Decimal | None) -> tuple[str, ...]:
        """Which bounds these latencies break; what is not known breaks its bound."""
        values = {"TTFT p99": ttft_p99_s, "TPOT p99": tpot_p99_ms}
        return tuple(
            f"{name} not measured"
            if value is None
            else f"{name} {short(value)} {unit} > {short(bound)}"
            for name, bound, unit in self._bounds
            if (value := values[name]) is None or value > bound
        )

    def __str__(self) -> str:
        found = [f"{name} <= {short(bound)} {unit}" for name, bound, unit in self._bounds]
        return ", ".join(found) or "no SLO"

    @property
    def _bounds(self) -> Iterator[tuple[str, Decimal, str]]:
        if self.ttft_p99_s is not None:
            yield "TTFT p99", self.ttft_p99_s, "s"
        if self.tpot_p99_ms is not None:
            yield "TPOT p99", self.tpot_p99_ms, "ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One question."""

    shape: ModelShape
    input_tokens: int
    """Tokens that the model reads before each answer."""
    output_tokens: int
    """Tokens that it writes in a whole chat."""
    chats_per_day: int
    turns: int = 1
    """Answers in a chat."""
    cached_share: Decimal = Decimal(0)
    """Share of the input that a prefix cache answers, 0 to 1."""
    peak_factor: Decimal = PEAK_FACTOR
    """Chats at the busiest time over the mean of the day."""
    promise: Promise = Promise()
    region: str | None = None
    """Only presets there; None: each where it is cheapest."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}: got {value}, expected {least} to {most:,}"
            for name, value, least, most in (
                ("input_tokens", self.input_tokens, 1, _MOST_TOKENS),
                ("output_tokens", self.output_tokens, 1, _MOST_TOKENS),
                ("turns", self.turns, 1, max(1, self.output_tokens)),
                ("chats_per_day", self.chats_per_day, 1, _MOST_CHATS),
                ("cached_share", self.cached_share, 0, 1),
                ("peak_factor", self.peak_factor, 1, 1000),
            )
            if not least <= value <= most
        ]
        problems += [
            f"slo.{name}: got {bound}, expected more than 0"
            for name in SLO_NAMES
            if (bound := getattr(self.promise, name)) is not None and bound <= 0
        ]
        if self.region is not None and self.region not in REGIONS:
            problems.append(f"region: got {self.region!r}, expected one of {', '.join(REGIONS)}")
        if not problems and (problem := self.shape.context_problem(self.most_context_tokens)):
            problems.append(f"input_tokens and the answer: {problem}")
        if problems:
            raise UserError("\n".join(problems))

    @property
    def answer_tokens(self) -> Decimal:
        """Tokens of one answer, the mean over the turns."""
        return decimal(self.output_tokens) / self.turns

    @property
    def read_tokens(self) -> Decimal:
        """Tokens that no cache holds, for one answer."""
        return self.input_tokens * (1 - self.cached_share)

    @property
    def mean_context_tokens(self) -> Decimal:
        """Tokens whose keys and values one step reads for a stream, the mean over its answer."""
        return self.input_tokens + self.answer_tokens / 2

    @property
    def most_context_tokens(self) -> int:
        """Tokens of a stream at the end of its answer, which memory must hold."""
        return self.input_tokens + -(-self.output_tokens // self.turns)

    @property
    def peak_answers_per_s(self) -> Decimal:
        """Answers a second at the busiest time."""
        return self.chats_per_day * self.turns * self.peak_factor / SECONDS_PER_DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peaks of one GPU."""

    bf16_flops: Decimal
    """Dense bf16 operations a second: half of what data sheets print with sparsity."""
    bytes_per_s: Decimal
    """Bytes a second from its memory."""
    link_bytes_per_s: Decimal
    """Bytes a second that it sends to the other GPUs of its node: half of both directions."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a peak that serving reaches."""

    ratio: Decimal
    source: str


def _peaks(tflops: str, gb_per_s: str, link_gb_per_s: str, source: str) -> Peaks:
    return Peaks(
        bf16_flops=Decimal(tflops) * 10**12,
        bytes_per_s=Decimal(gb_per_s) * 10**9,
        link_bytes_per_s=Decimal(link_gb_per_s) * 10**9,
        source=source,
    )


_BLACKWELL: Final = (
    "bf16 of HGX B200 and B300 at 1,000 W and 8 TB/s of memory: "
    "glennklockwood.com/garden/processors/B200 and B300, read 2026-11-21"
)
_L40S: Final = _peaks("362.05", "864", "32", "nvidia.com/en-us/data-center/l40s, read 2026-10-01")
_B200: Final = _peaks("2250", "8000", "900", _BLACKWELL)

PEAKS: Final[Mapping[str, Peaks]] = MappingProxyType(
    {
        "gpu-l40s-a": _L40S,
        "gpu-l40s-d": _L40S,
        "gpu-h100-sxm": _peaks(
            "989.4", "3350", "450", "nvidia.com/en-us/data-center/h100 (SXM), read 2026-10-01"
        ),
        "gpu-h200-sxm": _peaks(
            "989.4", "4800", "450", "nvidia.com/en-us/data-center/h200 (SXM), read 2026-10-01"
        ),
        "gpu-b200-sxm": _B200,
        "gpu-b200-sxm-a": _B200,
        "gpu-b300-sxm": _B200,
    }
)
"""By platform of stacks/catalog.py."""

LINK_SOURCE: Final = (
    "NVLink 4 of Hopper 900 GB/s, NVLink 5 of Blackwell 1,800 GB/s: "
    "alpha-one-index.github.io/ai-infra-index/specs/networking-interconnects.html, read "
    "2026-11-21; L40S has no NVLink, its PCIe 4.0 x16 64 GB/s: its data sheet; both directions"
)

# Of the link the same share is assumed: no source was found for sums as small as a step's.
BANDWIDTH_SHARE: Final = Share(
    ratio=Decimal("0.6"),
    source="between the 45 % and 82 % of H100 and L40S with Llama-3.1-8B at batch 1 (93 and 44 "
    "tokens/s, Koyeb through aihardwareindex, read 2026-11)",
)
FLOPS_SHARE: Final = Share(
    ratio=Decimal("0.4"),
    source="41 to 43 % of H100 with models of 7B and 8B (LoRA training, NeMo AutoModel's "
    "performance summary, read 2026-11)",
)
MOST_STREAMS: Final = 256
"""Answers at once of one server: vLLM's default of max_num_seqs (docs.vllm.ai, read 2026-11)."""
