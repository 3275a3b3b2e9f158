"""The tables of docs/sizing.md are what the planner computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost.report.layout import Format, render_report
from cost.size.answer import deck_answer
from cost.size.memory import (
    GIB,
    Method,
    Sharding,
    Strategy,
    Training,
    largest_micro_batch,
    training_memory,
    usable_bytes,
)
from cost.size.shape import load_shape

PAGE = Path(__file__).parents[3] / "docs" / "sizing.md"
COLUMNS = (Sharding(), Sharding(strategy=Strategy.FSDP, data=8))


def batch_row(model: str, method: Method) -> str:
    """Returns one line of the table of largest batches on 48 GB."""
    shape = load_shape(model)
    training = Training(
        method=method,
        dropout=0.05,
        sequence_length=2048,
        gradient_checkpointing=True,
    )
    cells = [model, method.value]
    for sharding in COLUMNS:
        memory = training_memory(shape, training, sharding)
        rows = largest_micro_batch(shape, training, sharding, usable=usable_bytes(48))
        cells += [f"{memory.total / GIB:,.1f}", str(rows)]
    return f"| {' | '.join(cells)} |"


def deck_rows() -> list[str]:
    """Returns the lines of the table of seed 004."""
    text = render_report(deck_answer(), Format.MARKDOWN)
    return [line for line in text.splitlines() if line.startswith("| Llama")]


@pytest.mark.feature("S000-19")
@pytest.mark.parametrize("model", ["Qwen3-8B", "Qwen3-14B", "Qwen3-32B"])
@pytest.mark.parametrize("method", Method)
def test_the_largest_batches_of_the_page_are_computed(model: str, method: Method) -> None:
    assert batch_row(model, method) in PAGE.read_text(encoding="utf-8").splitlines()


@pytest.mark.feature(
    "S004-06",
    "S004-07",
    "S004-08",
    "S004-09",
    "S004-10",
    "S004-11",
    "S004-12",
    "S004-13",
    "S004-14",
)
def test_the_rows_of_seed_004_on_the_page_are_computed() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = deck_rows()
    assert len(rows) == 9
    assert [line for line in lines if line.startswith("| Llama-2")] == rows


def test_the_usable_memory_that_the_page_names_is_the_planners() -> None:
    assert f"{usable_bytes(48) / GIB:.1f} usable" in PAGE.read_text(encoding="utf-8")
