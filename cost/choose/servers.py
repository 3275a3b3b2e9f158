"""What advice is asked for: a model, its chats, how many a day, and how fast answers must come.

Also what the GPU of a platform can do at most, and the share of it that serving reaches.

What one server holds under a load is measured by a load test, or estimated by the roofline.

A step of all streams reads the weights once and every stream's keys and values; reading a prompt
takes two operations a weight and token; GPUs that share a model add up what each has of a token
twice a layer. The time to start such a sum and attention's own arithmetic are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cost.chat.speeds import SECONDS_PER_DAY
from cost.report.layout import short
from cost.run_record import Kind, LoadPoint, Outcome, RunRecord
from cost.size.memory import Serving, cache_bytes_per_token, greatest, serving_memory
from cost.size.shape import ModelShape, base_name
from cost.traced import decimal, named
from stacks.catalog import REGIONS
from stacks.errors import UserError

PEAK_FACTOR: Final = Decimal(2)
"""Chats in the busiest hours over the mean of the day, where nothing else is said: assumed."""
SLO_NAMES: Final = ("ttft_p99_s", "tpot_p99_ms")
_MOST: Final = 10**12
"""As of every number of a stack file; what a model reads at most, its shape says."""


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
                ("input_tokens", self.input_tokens, 1, _MOST),
                ("output_tokens", self.output_tokens, 1, _MOST),
                ("turns", self.turns, 1, max(1, self.output_tokens)),
                ("chats_per_day", self.chats_per_day, 1, _MOST),
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

PEAKS: Final[Mapping[str, Peaks]] = {
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


LENGTH_TOLERANCE: Final = Decimal("0.1")
"""Requests of a curve may be this much longer or shorter than those asked for."""
_OK_SHARE: Final = Decimal("0.99")
"""Of all requests, those that must be answered for a 99th percentile to mean anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many streams on one server."""

    streams: int
    answers_per_s: Decimal
    output_tokens_per_s: Decimal
    ttft_p99_s: Decimal | None
    tpot_p99_ms: Decimal | None

    @property
    def answer_s(self) -> Decimal:
        """Seconds of one answer with all streams busy: Little's law."""
        return self.streams / self.answers_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The curve of one load test on a node of a preset."""

    record: RunRecord
    place: str
    """Platform and preset, such as `gpu-h100-sxm/8gpu-128vcpu-1600gb`."""
    points: tuple[LoadPoint, ...]
    input_tokens: Decimal
    answer_tokens: Decimal

    @property
    def source(self) -> str:
        """The job that measured it."""
        job = self.record
        return (
            f"job {job.job_id} of stack {job.stack or '?'}, {job.engine}, {job.finished_at.date()}"
        )

    def why_aside(self, ask: Ask) -> str | None:
        """Why the curve says nothing about the question's chats; None where it does."""
        pairs = ((self.input_tokens, ask.input_tokens), (self.answer_tokens, ask.answer_tokens))
        if all(abs(got - wanted) <= wanted * LENGTH_TOLERANCE for got, wanted in pairs):
            return None
        return (
            f"{self.place}: the curve of {self.source} is of "
            f"{short(self.input_tokens)} + {short(self.answer_tokens)} tokens a request, asked are "
            f"{ask.input_tokens:,} + {short(ask.answer_tokens)}"
        )

    @property
    def loads(self) -> tuple[Load, ...]:
        """Its loads that were answered, by streams."""
        return tuple(
            Load(
                streams=each.concurrency,
                answers_per_s=each.requests_per_s,
                output_tokens_per_s=each.output_tokens_per_s,
                ttft_p99_s=None if each.ttft.p99_ms is None else each.ttft.p99_ms / 1000,
                tpot_p99_ms=each.tpot.p99_ms,
            )
            for each in self.points
            if each.concurrency is not None
            and each.requests_per_s > 0
            and each.num_ok >= each.num_requests * _OK_SHARE
        )


def measured_curves(model: str, records: Iterable[RunRecord]) -> tuple[Measured, ...]:
    """The newest curve of the model by platform, preset and engine; tuned ones are their base."""
    newest: dict[tuple[str, str | None], Measured] = {}
    for record in sorted(records, key=lambda each: (each.finished_at, each.job_id)):
        found = _measured(model, record)
        if found is not None:
            newest[found.place, record.engine] = found
    return tuple(newest.values())


def best_load(ask: Ask, loads: Sequence[Load]) -> Load | None:
    """The load with the most answers a second that keeps the promise; None: none does."""
    kept = [each for each in loads if not ask.promise.broken(each.ttft_p99_s, each.tpot_p99_ms)]
    return max(kept, key=lambda each: (each.answers_per_s, -each.streams), default=None)


def _measured(model: str, record: RunRecord) -> Measured | None:
    hardware, curve = record.hardware, record.curve
    if record.kind != Kind.LOAD or record.outcome is not Outcome.PASS:
        return None
    if not (curve and hardware and hardware.platform and hardware.preset and record.engine):
        return None
    if not record.model or base_name(record.model) != base_name(model):
        return None
    answered = [each for each in curve.sweep if each.num_ok and each.mean_prompt_tokens]
    if not answered:
        return None
    first = answered[0]
    assert first.mean_prompt_tokens is not None
    return Measured(
        record=record,
        place=f"{hardware.platform}/{hardware.preset}",
        points=curve.sweep,
        input_tokens=first.mean_prompt_tokens,
        answer_tokens=first.mean_output_tokens,
    )


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
        return self.peaks.bf16_flops * self.ways * _share(FLOPS_SHARE, "operations", self)

    @property
    def bytes_per_s(self) -> Decimal:
        """Bytes a second that serving reads."""
        return self.peaks.bytes_per_s * self.ways * _share(BANDWIDTH_SHARE, "bytes", self)

    @property
    def link_bytes_per_s(self) -> Decimal:
        """Bytes a second that each GPU sends to the others."""
        return self.peaks.link_bytes_per_s * _share(BANDWIDTH_SHARE, "bytes", self)


def _share(share: Share, of: str, server: Server) -> Decimal:
    return named(share.ratio, f"share of the {of}", share.source, beside=server.ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Every term of one load, so that each can be explained."""

    passing_s: Decimal
    """Seconds that the GPUs pass the sums of one token between them; 0 of one GPU."""
    read_s: Decimal
    """Seconds to read one prompt."""
    step_s: Decimal
    """Seconds of one step of all streams."""
    is_bound_by_memory: bool
    """Whether bytes, not operations, say how long a step takes."""
    prompts_waited: Decimal
    """Prompts' worth of reading that 99 of 100 new ones wait at most."""
    load: Load


def estimate(server: Server, ask: Ask, streams: int) -> Estimate:
    """So many streams on the server, all busy."""
    shape = ask.shape
    # Every token is multiplied with these: an embedding of its own is looked up.
    weights, cache = (
        named(count, name, "cost/size/models.yaml or config.json", beside=server.ways)
        for count, name in (
            (
                shape.parameters - (0 if shape.tied else shape.embedding_weights),
                "weights of a step",
            ),
            (cache_bytes_per_token(shape), "bytes of keys and values a token"),
        )
    )
    passing_s = named(
        passed_bytes(shape, server.ways) / server.link_bytes_per_s, "seconds to pass a token", ""
    )
    read_s = 2 * weights * ask.read_tokens / server.flops + ask.read_tokens * passing_s
    read_s = named(read_s, "seconds to read a prompt", "")
    cached_bytes = streams * cache * ask.mean_context_tokens
    reading_bytes_s = (weights * _BYTES_PER_WEIGHT + cached_bytes) / server.bytes_per_s
    arithmetic_s = 2 * weights * streams / server.flops
    step_s = max(reading_bytes_s, arithmetic_s) + streams * passing_s
    step_s = named(step_s, "seconds of a step", "")
    busy_s = read_s + ask.answer_tokens * step_s / streams
    waited = prompts_waited(read_s / busy_s)
    return Estimate(
        passing_s=passing_s,
        read_s=read_s,
        step_s=step_s,
        is_bound_by_memory=reading_bytes_s >= arithmetic_s,
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


def passed_bytes(shape: ModelShape, ways: int) -> Decimal:
    """Bytes that each GPU sends for one token: 2 (n - 1) / n of every sum, round a ring."""
    sums = _SUMS_PER_LAYER * shape.layers * shape.hidden * _BYTES_PER_WEIGHT
    return sums * 2 * decimal(ways - 1) / ways


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
