"""Answers to `soperator size`: text for people and values for programs, of one computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cost.layout import Document, Format, lay_out
from cost.price_book import PriceBook
from cost.size import table
from cost.size.catalog import load_shape
from cost.size.choice import Choice, serving_choices, training_choices
from cost.size.errors import SizeError
from cost.size.gpu import usable_bytes
from cost.size.seed004 import DTYPES, GPU_MEMORY_GB, billions_of, deck_row
from cost.size.serving import Serving, serving_memory
from cost.size.shape import ModelShape
from cost.size.training import Dtype, Training
from cost.size.verdict import Gpus, Verdict, verdicts
from stacks.catalog import PLATFORMS

GPUS_ASKED: Final = 8
"""GPUs that strategies are compared on unless a number is asked for: one full node."""
_GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer in both forms."""

    document: Document
    values: dict[str, object]

    @property
    def text(self) -> str:
        """The answer as text of at most 100 columns."""
        return lay_out(self.document, Format.TABLE)


def training_answer(
    model: str,
    training: Training,
    book: PriceBook,
    *,
    gpus: int | None = None,
    gpu_memory_gb: int | None = None,
) -> Answer:
    """Memory and verdict by strategy, and every preset, the cheapest that fits first."""
    _require_positive(gpus=gpus, gpu_mem=gpu_memory_gb)
    shape = load_shape(model)
    choices = training_choices(shape, training, book, gpus=gpus)
    memory_gb = gpu_memory_gb or _memory_gb(choices[0])
    count = gpus or GPUS_ASKED
    found = verdicts_on(shape, training, gpus=count, memory_gb=memory_gb)
    return Answer(
        document=table.training_document(
            shape, training, found, choices, gpus_heading=f"{count} GPUs of {memory_gb} GB"
        ),
        values={
            "model": shape.name,
            "parameters": shape.parameters,
            "method": training.method.value,
            "dtype": training.dtype.value,
            "gpus": count,
            "gpu_memory_gb": memory_gb,
            "strategies": [table.verdict_json(each) for each in found],
            "presets": [table.choice_json(each) for each in choices],
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
    model: str,
    serving: Serving,
    book: PriceBook,
) -> Answer:
    """Memory of one serving process, and every preset, the cheapest that fits first."""
    shape = load_shape(model)
    # Packed rows of training hold many contexts: only one that is served has this bound.
    if problem := shape.context_problem(serving.context_tokens):
        raise SizeError(f"--seq: {problem}")
    memory = serving_memory(shape, serving)
    choices = serving_choices(shape, serving, book)
    return Answer(
        document=table.serving_document(shape, serving, memory, choices),
        values={
            "model": shape.name,
            "parameters": shape.parameters,
            "dtype": serving.dtype.value,
            "streams": serving.streams,
            "context_tokens": serving.context_tokens,
            "bytes_per_gpu": {**memory.parts, "total": memory.total},
            "presets": [table.choice_json(each) for each in choices],
        },
    )


def seed004_answer(
    model: str | None = None, *, dtype: Dtype | None = None, gpu_memory_gb: int | None = None
) -> Answer:
    """The deck's rule beside the planner: its nine rows, or the rows of one model."""
    memory_gb = GPU_MEMORY_GB if gpu_memory_gb is None else gpu_memory_gb
    _require_positive(gpu_mem=memory_gb)
    shapes = [load_shape(name) for name in ([model] if model else table.deck_models())]
    rows = [
        (shape, deck_row(billions_of(shape), each, gpu_memory_gb=memory_gb))
        for each in (DTYPES if dtype is None else (dtype,))
        for shape in shapes
    ]
    values: list[dict[str, object]] = []
    for shape, row in rows:
        state, total, gpus = table.honest(shape, row.dtype, gpu_memory_gb=memory_gb)
        values.append(
            {
                "model": shape.name,
                "dtype": row.dtype.value,
                "deck_weights_gb": row.weights_gb,
                "deck_training_gb": row.training_gb,
                "deck_gpus": row.gpus,
                "state_bytes": state,
                "total_bytes": total,
                "gpus": gpus,
            }
        )
    return Answer(
        document=table.seed004_document(rows, gpu_memory_gb=memory_gb),
        values={"gpu_memory_gb": memory_gb, "rows": values},
    )


def _memory_gb(choice: Choice) -> int:
    found = PLATFORMS[choice.platform].gpu_memory_gb
    assert found is not None
    return found


def _require_positive(**values: int | None) -> None:
    problems = [
        f"--{name.replace('_', '-')}: got {value}, expected 1 or more"
        for name, value in values.items()
        if value is not None and value < 1
    ]
    if problems:
        raise SizeError("\n".join(problems))
