"""Answers to `soperator cost size`: tables for people and values for programs, of one computation.

`--rule 2024-deck` is that of slides of March 2024, which print nine rows and no rule. This one
gives all nine: weights are bytes times billions; training takes 3.5 times that, rounded up to 1 or
1.5 times a power of two where that is at most a tenth more; GPUs are the next power of two of
memory by 40 GB. docs/sizing.md says where it is low.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from fractions import Fraction
from math import ceil
from typing import Final

from cost.prices.book import PriceBook
from cost.report.layout import Report, Table, picked, usd_text
from cost.size.choice import Choice, Gpus, Verdict, choices, refuse_more_layers, verdicts
from cost.size.memory import (
    ABOUT,
    BITS,
    GIB,
    USABLE_PERCENT,
    Dtype,
    Method,
    Serving,
    Sharding,
    Strategy,
    Training,
    cache_bytes_per_token,
    serving_memory,
    training_memory,
    usable_bytes,
)
from cost.size.shape import ModelShape, SizeError, below_one, load_shape, rows
from stacks.catalog import PLATFORMS
from stacks.spec import StackSpec

GPUS_ASKED: Final = 8
"""GPUs that strategies are compared on unless a number is asked for: one full node."""
_GPUS_PER_NODE: Final = 8


def training_answer(
    model: str,
    training: Training,
    book: PriceBook,
    *,
    gpus: int | None = None,
    gpu_memory_gb: int | None = None,
    spec: StackSpec | None = None,
) -> Report:
    """Memory and verdict by strategy, and every preset, the cheapest that fits first."""
    _require_positive(gpus=gpus, gpu_mem=gpu_memory_gb)
    shape = load_shape(model)
    presets = choices(shape, training, book, gpus=gpus, spec=spec)
    memory_gb = gpu_memory_gb or PLATFORMS[presets[0].platform].gpu_memory_gb
    assert memory_gb is not None, "a preset with GPUs"
    count = gpus or GPUS_ASKED
    found = verdicts_on(shape, training, gpus=count, memory_gb=memory_gb)
    rank = f" r{training.rank}" if training.has_adapters else ""
    refuse_more_layers(shape, training, at="--checkpointing-layers")
    again = training.recomputed_layers(shape.layers)
    title = f"GiB of one GPU by strategy, {count} GPUs of {memory_gb} GB"
    return Report(
        heading=(
            f"{shape.name}: {shape.parameters:,} weights; {training.method}{rank}, "
            f"{training.dtype}, {training.micro_batch_size} x {training.sequence_length} "
            f"tokens a GPU, {again} of {shape.layers} layers recomputed"
        ),
        tables=(
            _memory_table(title, found),
            _strategy_table(found),
            _choice_table(presets, batch="rows"),
        ),
        notes=(
            *(f"{each.sharding.label}: {each.reason}" for each in found if not each.usable_here),
            *_losers(presets),
            _RESERVE_NOTE,
        ),
        data=lambda: {
            **picked(shape, "model=name parameters"),
            **picked(training, "method dtype"),
            "gradient_checkpointing": again,
            "layers": shape.layers,
            "gpus": count,
            "gpu_memory_gb": memory_gb,
            "strategies": [verdict_json(each) for each in found],
            "presets": [choice_json(each) for each in presets],
        },
    )


def verdicts_on(
    shape: ModelShape, training: Training, *, gpus: int, memory_gb: int
) -> tuple[Verdict, ...]:
    """Verdicts on so many GPUs, in nodes of at most eight."""
    per_node = next(size for size in range(_GPUS_PER_NODE, 0, -1) if gpus % size == 0)
    return verdicts(
        shape,
        training,
        Gpus(nodes=gpus // per_node, per_node=per_node, usable=usable_bytes(memory_gb)),
    )


def serving_answer(
    model: str, serving: Serving, book: PriceBook, *, spec: StackSpec | None = None
) -> Report:
    """Memory of one serving process, and every preset, the cheapest that fits first."""
    shape = load_shape(model)
    # Packed rows of training hold many contexts: only one that is served has this bound.
    if problem := shape.context_problem(serving.context_tokens):
        raise SizeError(f"--seq: {problem}")
    memory = serving_memory(shape, serving)
    presets = choices(shape, serving, book, spec=spec)
    return Report(
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
            ),
            _choice_table(presets, batch="streams"),
        ),
        notes=(*_losers(presets), _RESERVE_NOTE),
        data=lambda: {
            **picked(shape, "model=name parameters"),
            **picked(serving, "dtype streams context_tokens"),
            "bytes_per_gpu": {**memory.parts, "total": memory.total},
            "presets": [choice_json(each) for each in presets],
        },
    )


def models_answer(
    need: Training | Serving, book: PriceBook, spec: StackSpec, *, gpus: int | None = None
) -> Report:
    """Models of the catalog that a stack's workers hold, the largest first, on their cheapest."""
    _require_positive(gpus=gpus)
    tokens = need.context_tokens if isinstance(need, Serving) else 1
    shapes = [each for each in map(load_shape, rows()) if not each.context_problem(tokens)]
    found = [(each, choices(each, need, book, gpus=gpus, spec=spec)[0]) for each in shapes]
    found = [(shape, each) for shape, each in found if each.fits and each.runs_here]
    if not found:
        raise SizeError(
            f"{spec.name}: no model of the catalog fits on its workers; give --method qlora, a "
            "smaller --seq, --batch or --streams, or another --stack"
        )
    # Equal to two digits, they stay in the catalog's order: its newest family is the first.
    found.sort(key=lambda each: -round(each[0].parameters, 2 - len(str(each[0].parameters))))
    batch = "rows" if isinstance(need, Training) else "streams"
    headings = "model", "licence", "nodes", "strategy", "context", "GiB a GPU", f"most {batch}"
    table = Table(
        title=f"Models that {spec.name} holds and this project runs, the largest first",
        headings=(*headings, "$/h"),
        rows=tuple(
            (
                shape.name,
                rows()[shape.name]["licence"],
                f"{each.nodes} x {each.preset}",
                each.strategy,
                f"{shape.max_positions:,}",
                *_preset_cells(each),
            )
            for shape, each in found
        ),
        num_text_columns=4,
    )
    note = "a larger model answers better and slower: the job evaluate says how well"
    return Report(
        tables=(table,),
        notes=(note, _RESERVE_NOTE),
        data=lambda: {
            "stack": spec.name,
            "models": [
                {
                    "model": shape.name,
                    "parameters": shape.parameters,
                    "licence": rows()[shape.name]["licence"],
                    "context_tokens": shape.max_positions,
                    **choice_json(each),
                }
                for shape, each in found
            ],
        },
    )


def deck_answer(
    model: str | None = None, *, dtype: Dtype | None = None, gpu_memory_gb: int | None = None
) -> Report:
    """The deck's rule beside the planner: its nine rows, or the rows of one model.

    The planner's are of AdamW in fp32, one row of 4,096 tokens, FSDP.
    """
    memory_gb = GPU_MEMORY_GB if gpu_memory_gb is None else gpu_memory_gb
    _require_positive(gpu_mem=memory_gb)
    deck = [f"Llama-2-{billions}b" for billions in BILLIONS]
    shapes = [load_shape(name) for name in ([model] if model else deck)]
    values: list[dict[str, object]] = []
    cells: list[tuple[str, ...]] = []
    for each in DTYPES if dtype is None else (dtype,):
        for shape in shapes:
            said = deck_row(billions_of(shape), each, gpu_memory_gb=memory_gb)
            state, total, gpus = honest(shape, each, gpu_memory_gb=memory_gb)
            deck_names = "deck_weights_gb", "deck_training_gb", "deck_gpus"
            values.append(
                {
                    "model": shape.name,
                    "dtype": each.value,
                    **dict(zip(deck_names, said, strict=True)),
                    "state_bytes": state,
                    "total_bytes": total,
                    "gpus": gpus,
                }
            )
            planned = f"{state / 10**9:,.1f}", f"{total / 10**9:,.1f}", f"{gpus or 'none'}"
            cells.append(
                (f"{shape.name} {each}", f"{said[0]:,}", f"{said[1]:,}", f"{said[2]}", *planned)
            )
    return Report(
        tables=(
            Table(
                title=(
                    f"Rule of the 2024 deck on GPUs of {memory_gb} GB, beside this planner (full "
                    "training, fsdp; decimal GB)"
                ),
                headings=(
                    *("model", "weights", "deck: training", "GPUs", "planner: state"),
                    *("with activations", "GPUs"),
                ),
                rows=tuple(cells),
            ),
        ),
        notes=(
            "state: weights, gradients and AdamW in fp32, 16 bytes a weight in every trained type",
            "the deck's rule: 14 bytes a weight in fp32, 7 in fp16, and no activations",
            "int8: weights in 8 bits have no gradients; the planner's figure is qlora r16",
            f"GPUs of the planner: the fewest on which fsdp fits in {USABLE_PERCENT} % of memory",
        ),
        data=lambda: {"gpu_memory_gb": memory_gb, "rows": values},
    )


def _require_positive(**values: int | None) -> None:
    options = {f"--{name.replace('_', '-')}": value for name, value in values.items()}
    if problems := below_one(options):
        raise SizeError("\n".join(problems))


_YES_NO = {True: "yes", False: "no"}


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
    divided = ((n, Sharding(strategy=Strategy.FSDP, data=n)) for n in range(1, 4097))
    fits = (n for n, each in divided if training_memory(shape, training, each).total <= usable)
    return alone.weights + alone.gradients + alone.optimizer, alone.total, next(fits, 0)


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


def _choice_table(presets: Sequence[Choice], *, batch: str) -> Table:
    return Table(
        title="Presets, the cheapest that fits and runs here first",
        headings=("nodes", "strategy", "fits", "runs here", "GiB a GPU", f"most {batch}", "$/h"),
        rows=tuple(
            (
                f"{each.nodes} x {each.platform} {each.preset}",
                each.strategy,
                _YES_NO[each.fits],
                _YES_NO[each.runs_here],
                *_preset_cells(each),
            )
            for each in presets
        ),
        num_text_columns=4,
        bad_rows=frozenset(index for index, each in enumerate(presets) if not each.fits),
    )


def _preset_cells(choice: Choice) -> tuple[str, str, str]:
    """Memory, largest batch and price."""
    memory = f"{choice.need_bytes / GIB:,.1f} of {choice.usable_bytes / GIB:,.1f}"
    return memory, f"{choice.largest_batch}", usd_text(choice.usd_per_hour)


def _losers(presets: Sequence[Choice]) -> list[str]:
    """Why presets behind the first do not win, one note for those with one reason."""
    reasons: dict[str, list[str]] = {}
    for each in presets[1:]:
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
    paths = (
        "platform preset nodes gpus fits runs_here strategy largest_batch reason usd_per_hour "
        "region need_bytes_per_gpu=need_bytes usable_bytes_per_gpu=usable_bytes"
    )
    return picked(choice, paths, lambda usd: f"{usd:f}")


def verdict_json(verdict: Verdict) -> dict[str, object]:
    """One strategy as plain values."""
    return {
        **asdict(verdict.sharding),
        **picked(verdict, "fits runs_here largest_micro_batch reason"),
        "bytes_per_gpu": {**verdict.memory.parts, "total": verdict.memory.total},
        "host_bytes_per_gpu": verdict.memory.host,
    }


GPU_MEMORY_GB: Final = 40
"""The deck's assumption; its own benchmark ran on GPUs of 80 GB."""
DTYPES: Final = (Dtype.FP32, Dtype.FP16, Dtype.INT8)
BILLIONS: Final = (7, 13, 70)
"""The deck's models: Llama-2."""
_FACTOR: Final = Fraction(7, 2)
_ROUNDED_UP_BY: Final = Fraction(11, 10)


def deck_row(
    billions: int, dtype: Dtype, *, gpu_memory_gb: int = GPU_MEMORY_GB
) -> tuple[int, int, int]:
    """Decimal GB of weights and of training, and GPUs: the deck's, or by its rule for others."""
    if dtype not in DTYPES:
        raise SizeError(
            f"dtype: {dtype} is not a type that the deck prints; use one of {', '.join(DTYPES)}"
        )
    weights_gb = billions * BITS[dtype] // 8
    training_gb = _deck_rounding(_FACTOR * weights_gb)
    return weights_gb, training_gb, _next_power_of_two(-(-training_gb // gpu_memory_gb))


def billions_of(shape: ModelShape) -> int:
    """The size that a model is called by, as the deck does: 70 for Llama-2-70b with its 69."""
    named = re.search(r"(?<![\d.])(\d+)b$", shape.name, re.IGNORECASE)
    return int(named.group(1)) if named else max(1, round(shape.parameters / 10**9))


def _deck_rounding(amount_gb: Fraction) -> int:
    power = _next_power_of_two(ceil(amount_gb))
    steps = (Fraction(3 * power, 4), Fraction(power))
    round_number = next(step for step in steps if step >= amount_gb)
    return ceil(round_number if round_number <= amount_gb * _ROUNDED_UP_BY else amount_gb)


def _next_power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
