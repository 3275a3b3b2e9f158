"""What `soperator size` prints: documents for people, plain values for programs.

Owns words and order. Arithmetic is in the modules that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from cost.layout import UNKNOWN, Document, Table, usd_text
from cost.size.choice import Choice
from cost.size.gpu import GIB, USABLE_PERCENT, usable_bytes
from cost.size.memory import Memory, training_memory
from cost.size.seed004 import BILLIONS, DeckRow
from cost.size.serving import Serving, cache_bytes_per_token
from cost.size.shape import ModelShape
from cost.size.sharding import ABOUT, Sharding, Strategy
from cost.size.training import Dtype, Method, Training
from cost.size.verdict import Verdict

_YES_NO = {True: "yes", False: "no"}


def training_document(
    shape: ModelShape,
    training: Training,
    found: Sequence[Verdict],
    choices: Sequence[Choice],
    *,
    gpus_heading: str,
) -> Document:
    """Memory by strategy on the asked GPUs, then every preset, the cheapest that fits first."""
    rank = f" r{training.rank}" if training.has_adapters else ""
    checkpointing = "with" if training.gradient_checkpointing else "without"
    return Document(
        heading=(
            f"{shape.name}: {shape.parameters:,} weights; {training.method}{rank}, "
            f"{training.dtype}, {training.micro_batch_size} x {training.sequence_length} tokens "
            f"a GPU, {checkpointing} gradient checkpointing"
        ),
        tables=(
            _memory_table(f"GiB of one GPU by strategy, {gpus_heading}", found),
            _strategy_table(found),
            _choice_table(choices, batch="rows"),
        ),
        notes=(
            *(f"{each.sharding.label}: {each.reason}" for each in found if not each.usable_here),
            *_losers(choices),
            _RESERVE_NOTE,
        ),
    )


def serving_document(
    shape: ModelShape, serving: Serving, memory: Memory, choices: Sequence[Choice]
) -> Document:
    """Memory of one process, then every preset, the cheapest that fits first."""
    return Document(
        heading=(
            f"{shape.name}: {shape.parameters:,} weights in {serving.dtype}, {serving.streams} "
            f"streams of {serving.context_tokens} tokens; "
            f"{cache_bytes_per_token(shape, serving.dtype):,} bytes of keys and values a token"
        ),
        tables=(
            Table(
                title=f"GiB of each GPU, {serving.tensor} to a process",
                headings=("part", "GiB"),
                rows=tuple(
                    (name, f"{amount / GIB:,.2f}")
                    for name, amount in [*memory.parts.items(), ("total", memory.total)]
                    if amount
                ),
                num_text_columns=1,
            ),
            _choice_table(choices, batch="streams"),
        ),
        notes=(*_losers(choices), _RESERVE_NOTE),
    )


def seed004_document(rows: Sequence[tuple[ModelShape, DeckRow]], *, gpu_memory_gb: int) -> Document:
    """The deck's rule beside what training takes: AdamW in fp32, one row of 4,096 tokens, FSDP."""
    return Document(
        heading=None,
        tables=(
            Table(
                title=(
                    f"Rule of seed 004 on GPUs of {gpu_memory_gb} GB, beside this planner "
                    "(full training, fsdp; decimal GB)"
                ),
                headings=(
                    "model",
                    "weights",
                    "deck: training",
                    "GPUs",
                    "planner: state",
                    "with activations",
                    "GPUs",
                ),
                rows=tuple(_deck_cells(shape, row, gpu_memory_gb) for shape, row in rows),
                num_text_columns=1,
            ),
        ),
        notes=(
            "state: weights, gradients and AdamW in fp32, 16 bytes a weight in every trained type",
            "the deck's rule: 14 bytes a weight in fp32, 7 in fp16, and no activations",
            "int8: weights in 8 bits have no gradients; the planner's figure is qlora r16",
            f"GPUs of the planner: the fewest on which fsdp fits in {USABLE_PERCENT} % of memory",
        ),
    )


def deck_models() -> tuple[str, ...]:
    """Catalog names of the deck's three models."""
    return tuple(f"Llama-2-{billions}b" for billions in BILLIONS)


def honest(shape: ModelShape, dtype: Dtype, *, gpu_memory_gb: int) -> tuple[int, int, int]:
    """Bytes of training state on all GPUs, bytes with activations, and the GPUs that fsdp needs."""
    method = Method.FULL if dtype in (Dtype.FP32, Dtype.FP16) else Method.QLORA
    training = Training(
        method=method,
        dtype=dtype if method is Method.FULL else Dtype.BF16,
        gradient_checkpointing=True,
    )
    alone = training_memory(shape, training, Sharding())
    usable = usable_bytes(gpu_memory_gb)
    for gpus in range(1, 4097):
        sharding = Sharding(strategy=Strategy.FSDP, data=gpus)
        if training_memory(shape, training, sharding).total <= usable:
            break
    else:
        gpus = 0
    return alone.weights + alone.gradients + alone.optimizer, alone.total, gpus


def _deck_cells(shape: ModelShape, row: DeckRow, gpu_memory_gb: int) -> tuple[str, ...]:
    state, total, gpus = honest(shape, row.dtype, gpu_memory_gb=gpu_memory_gb)
    return (
        f"{shape.name} {row.dtype}",
        f"{row.weights_gb:,}",
        f"{row.training_gb:,}",
        f"{row.gpus}",
        _gb(state),
        _gb(total),
        f"{gpus}" if gpus else "none",
    )


def _gb(amount: int) -> str:
    return f"{amount / 10**9:,.1f}"


def _memory_table(title: str, found: Sequence[Verdict]) -> Table:
    names = [name for name in found[0].memory.parts if any(v.memory.parts[name] for v in found)]
    return Table(
        title=title,
        headings=("strategy", *(name.replace("_", " ") for name in names), "total"),
        rows=tuple(
            (
                each.sharding.label,
                *(f"{each.memory.parts[name] / GIB:,.2f}" for name in names),
                f"{each.memory.total / GIB:,.2f}",
            )
            for each in found
        ),
        num_text_columns=1,
    )


def _strategy_table(found: Sequence[Verdict]) -> Table:
    return Table(
        title="Verdicts, least traffic between GPUs first",
        headings=("strategy", "what it divides", "fits", "runs here", "most rows a GPU"),
        rows=tuple(
            (
                each.sharding.label,
                ABOUT[each.sharding.strategy],
                _YES_NO[each.fits],
                _YES_NO[each.runs_here],
                f"{each.largest_micro_batch}",
            )
            for each in found
        ),
        num_text_columns=4,
        bad_rows=frozenset(index for index, each in enumerate(found) if not each.fits),
    )


def _choice_table(choices: Sequence[Choice], *, batch: str) -> Table:
    return Table(
        title="Presets, the cheapest that fits and runs here first",
        headings=("nodes", "strategy", "fits", "runs here", "GiB a GPU", f"most {batch}", "$/h"),
        rows=tuple(
            (
                f"{each.nodes} x {each.platform} {each.preset}",
                each.strategy,
                _YES_NO[each.fits],
                _YES_NO[each.runs_here],
                f"{each.need_bytes / GIB:,.1f} of {each.usable_bytes / GIB:,.1f}",
                f"{each.largest_batch}",
                UNKNOWN if each.usd_per_hour is None else usd_text(each.usd_per_hour),
            )
            for each in choices
        ),
        num_text_columns=4,
        bad_rows=frozenset(index for index, each in enumerate(choices) if not each.fits),
    )


def _losers(choices: Sequence[Choice]) -> list[str]:
    """Why presets behind the first do not win, one note for those with one reason."""
    reasons: dict[str, list[str]] = {}
    for each in choices[1:]:
        if each.fits and each.runs_here and each.usd_per_hour is not None:
            continue
        reasons.setdefault(each.reason, []).append(
            f"{each.nodes} x {each.preset} ({each.platform})"
        )
    dearer = "presets that fit and run here stand by price; --format json has how much more"
    return [f"{', '.join(names)}: {reason}" for reason, names in reasons.items()] + [dearer]


_RESERVE_NOTE = (
    f"usable is {USABLE_PERCENT} % of what CUDA shows; working is the greatest of logits, one "
    "layer's backward pass and an optimizer step; no figure here was measured on a GPU"
)


def choice_json(choice: Choice) -> dict[str, object]:
    """One preset as plain values; money is text."""
    return {
        "platform": choice.platform,
        "preset": choice.preset,
        "nodes": choice.nodes,
        "gpus": choice.gpus,
        "fits": choice.fits,
        "runs_here": choice.runs_here,
        "strategy": choice.strategy,
        "need_bytes_per_gpu": choice.need_bytes,
        "usable_bytes_per_gpu": choice.usable_bytes,
        "largest_batch": choice.largest_batch,
        "usd_per_hour": None if choice.usd_per_hour is None else f"{choice.usd_per_hour:f}",
        "region": choice.region,
        "reason": choice.reason,
    }


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """One strategy as plain values."""
    return {
        "strategy": verdict.sharding.strategy.value,
        "data": verdict.sharding.data,
        "tensor": verdict.sharding.tensor,
        "pipeline": verdict.sharding.pipeline,
        "fits": verdict.fits,
        "runs_here": verdict.runs_here,
        "largest_micro_batch": verdict.largest_micro_batch,
        "reason": verdict.reason,
        "bytes_per_gpu": {**verdict.memory.parts, "total": verdict.memory.total},
        "host_bytes_per_gpu": verdict.memory.host,
    }
