"""What a server holds by the roofline, where nobody measured it: estimate(server, ask, streams).

A step of all streams reads the weights once and every stream's keys and values; reading a prompt
takes two operations a weight and token; GPUs that share a model add up what each has of a token
twice a layer. The time to start such a sum and attention's own arithmetic are left out. Owns the
model and its formulas; peaks and shares are advise_peaks.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cost.advise_ask import Ask
from cost.advise_load import Load
from cost.advise_peaks import BANDWIDTH_SHARE, FLOPS_SHARE, MOST_STREAMS, Peaks
from cost.size.batch import greatest
from cost.size.serving import Serving, cache_bytes_per_token, serving_memory
from cost.size.shape import ModelShape

_BYTES_PER_WEIGHT: Final = 2
_SUMS_PER_LAYER: Final = 2
"""After attention and after the MLP (Megatron-LM, arXiv 1909.08053, section 3)."""
_TAIL: Final = Decimal("0.01")
"""What a 99th percentile leaves out."""
_MOST_LOAD: Final = Decimal("0.999")
_MOST_STEPS: Final = 100
_NEAR: Final = Decimal("1e-12")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One process that answers chats in bf16, on `ways` GPUs that share each layer."""

    peaks: Peaks
    ways: int
    usable_bytes: int
    """Bytes that tensors may take on each GPU."""

    @property
    def flops(self) -> Decimal:
        """Operations a second that serving reaches."""
        return self.peaks.bf16_flops * self.ways * FLOPS_SHARE.ratio

    @property
    def bytes_per_s(self) -> Decimal:
        """Bytes a second that serving reads."""
        return self.peaks.bytes_per_s * self.ways * BANDWIDTH_SHARE.ratio

    @property
    def link_bytes_per_s(self) -> Decimal:
        """Bytes a second that each GPU sends to the others."""
        return self.peaks.link_bytes_per_s * BANDWIDTH_SHARE.ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Every term of one load, so that each can be explained."""

    streams: int
    weights: int
    """Weights that a token is multiplied with."""
    cache_bytes_per_token: int
    passing_s: Decimal
    """Seconds that the GPUs pass the sums of one token between them; 0 of one GPU."""
    read_s: Decimal
    """Seconds to read one prompt."""
    reading_bytes_s: Decimal
    """Seconds of a step by the bytes that it reads."""
    arithmetic_s: Decimal
    """Seconds of a step by its operations."""
    busy_s: Decimal
    """Seconds of the server that one answer takes."""
    prompts_waited: Decimal
    """Prompts' worth of reading that 99 of 100 new ones wait at most."""
    load: Load

    @property
    def step_s(self) -> Decimal:
        """Seconds of one step of all streams."""
        return max(self.reading_bytes_s, self.arithmetic_s) + self.streams * self.passing_s

    @property
    def is_bound_by_memory(self) -> bool:
        """Whether bytes, not operations, say how long a step takes."""
        return self.reading_bytes_s >= self.arithmetic_s


def estimate(server: Server, ask: Ask, streams: int) -> Estimate:
    """So many streams on the server, all busy."""
    shape = ask.shape
    weights, cache = step_weights(shape), cache_bytes_per_token(shape)
    passing_s = passed_bytes(shape, server.ways) / server.link_bytes_per_s
    read_s = 2 * weights * ask.read_tokens / server.flops + ask.read_tokens * passing_s
    cached_bytes = streams * cache * ask.mean_context_tokens
    reading_bytes_s = (weights * _BYTES_PER_WEIGHT + cached_bytes) / server.bytes_per_s
    arithmetic_s = 2 * weights * streams / server.flops
    step_s = max(reading_bytes_s, arithmetic_s) + streams * passing_s
    busy_s = read_s + ask.answer_tokens * step_s / streams
    waited = prompts_waited(read_s / busy_s)
    return Estimate(
        streams=streams,
        weights=weights,
        cache_bytes_per_token=cache,
        passing_s=passing_s,
        read_s=read_s,
        reading_bytes_s=reading_bytes_s,
        arithmetic_s=arithmetic_s,
        busy_s=busy_s,
        prompts_waited=waited,
        load=Load(
            streams=streams,
            answers_per_s=1 / busy_s,
            output_tokens_per_s=ask.answer_tokens / busy_s,
            ttft_p99_s=(waited + 1) * read_s + step_s,
            # While one stream writes its answer, each of the others is read once.
            tpot_p99_ms=1000 * (step_s + (streams - 1) * read_s / ask.answer_tokens),
        ),
    )


def best_estimate(server: Server, ask: Ask) -> Estimate | None:
    """The most streams that fit and keep the promise; None where one alone does not."""

    def keeps(streams: int) -> bool:
        if streams > MOST_STREAMS or missing_bytes(server, ask, streams) > 0:
            return False
        load = estimate(server, ask, streams).load
        return not ask.promise.broken(load.ttft_p99_s, load.tpot_p99_ms)

    # More streams answer more a second, and each of them later: the greatest is the best.
    streams = greatest(keeps)
    return estimate(server, ask, streams) if streams else None


def missing_bytes(server: Server, ask: Ask, streams: int) -> int:
    """Bytes that a GPU lacks for weights, keys and values and working set; below 0 is room."""
    serving = Serving(streams=streams, context_tokens=ask.most_context_tokens, tensor=server.ways)
    return serving_memory(ask.shape, serving).total - server.usable_bytes


def step_weights(shape: ModelShape) -> int:
    """Weights that every token is multiplied with: an embedding of its own is looked up."""
    return shape.parameters - (0 if shape.tied else shape.embedding_weights)


def passed_bytes(shape: ModelShape, ways: int) -> Decimal:
    """Bytes that each GPU sends for one token: 2 (n - 1) / n of every sum, round a ring."""
    sums = _SUMS_PER_LAYER * shape.layers * shape.hidden * _BYTES_PER_WEIGHT
    return sums * 2 * Decimal(ways - 1) / ways


def prompts_waited(share: Decimal) -> Decimal:
    """Prompts' worth of reading that 99 of 100 wait at most, where reading takes this share.

    A queue of prompts of one length that come at random (M/D/1): Lundberg's bound exp(-x t) with
    share * (exp(x) - 1) = x, rounded up to a hundredth.
    """
    if share <= _TAIL:
        return Decimal(0)
    load = min(share, _MOST_LOAD)
    # Newton from the right of the root of a convex curve: it comes down to it and never passes it.
    root = 2 * (2 / load).ln() + 2
    for _ in range(_MOST_STEPS):
        grown = root.exp()
        step = (load * (grown - 1) - root) / (load * grown - 1)
        root -= step
        if step < _NEAR:
            break
    return (-_TAIL.ln() / root).quantize(_TAIL, ROUND_CEILING)
