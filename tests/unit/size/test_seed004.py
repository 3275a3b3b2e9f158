"""The nine rows of seed 004, by its own rule, beside what training takes."""

from __future__ import annotations

import pytest

from cost.size.answer import billions_of, deck_answer, deck_row
from cost.size.memory import Dtype
from cost.size.shape import SizeError, load_shape

# Slides "LLMs don't fit into a single GPU" of seed 004: weights GB, training GB, GPUs of 40 GB. The
# deck prints "~1TB" for 1,024.
SLIDES = [
    (7, "fp32", 28, 98, 4),
    (13, "fp32", 52, 192, 8),
    (70, "fp32", 280, 1024, 32),
    (7, "fp16", 14, 49, 2),
    (13, "fp16", 26, 96, 4),
    (70, "fp16", 140, 512, 16),
    (7, "int8", 7, 25, 1),
    (13, "int8", 13, 48, 2),
    (70, "int8", 70, 256, 8),
]


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
def test_the_rule_gives_every_row_of_the_slides() -> None:
    rows = [(billions, dtype, *deck_row(billions, Dtype(dtype))) for billions, dtype, *_ in SLIDES]
    assert rows == SLIDES
    answered = [
        tuple(row[f"deck_{name}"] for name in ("weights_gb", "training_gb", "gpus"))
        for row in deck_answer().data()["rows"]  # type: ignore[attr-defined]
    ]
    assert answered == [row[2:] for row in SLIDES]


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
def test_the_command_prints_the_rows_of_the_slides_as_they_are() -> None:
    answer = deck_answer()
    rows = answer.data()["rows"]
    assert isinstance(rows, list)
    names = [(f"Llama-2-{billions}b", dtype) for billions, dtype, *_ in SLIDES]
    figures = [tuple(slide[2:]) for slide in SLIDES]
    assert [(row["model"], row["dtype"]) for row in rows] == names
    assert figures == [
        (row["deck_weights_gb"], row["deck_training_gb"], row["deck_gpus"]) for row in rows
    ]
    (table,) = answer.tables
    assert table.headings[1:4] == ("weights", "deck: training", "GPUs")
    assert [row[:4] for row in table.rows] == [
        (f"{model} {dtype}", *(f"{each:,}" for each in of_slide))
        for (model, dtype), of_slide in zip(names, figures, strict=True)
    ]


@pytest.mark.feature("S004-06", "S004-09", "S004-15")
def test_gpu_memory_is_an_input_of_the_rule() -> None:
    assert deck_row(7, Dtype.FP32, gpu_memory_gb=80)[2] == 2
    assert deck_row(70, Dtype.FP16, gpu_memory_gb=80)[2] == 8
    assert deck_row(7, Dtype.FP32, gpu_memory_gb=49)[2] == 2, "98 GB fit two of them exactly"
    assert deck_row(7, Dtype.FP16, gpu_memory_gb=49)[2] == 1
    for given, deck_gpus, gpus in ((None, 4, 4), (80, 2, 2), (141, 1, 1)):
        answer = deck_answer("Llama-2-7b", dtype=Dtype.FP32, gpu_memory_gb=given)
        (row,) = answer.data()["rows"]  # type: ignore[misc]
        assert (row["deck_gpus"], row["gpus"]) == (deck_gpus, gpus)


@pytest.mark.parametrize(
    ("model", "billions"), [("Llama-2-70b", 70), ("Qwen3-14B", 14), ("SmolLM2-1.7B", 2)]
)
def test_a_model_is_called_by_its_name(model: str, billions: int) -> None:
    assert billions_of(load_shape(model)) == billions


def test_the_deck_is_low_wherever_weights_can_be_trained() -> None:
    """State alone, without activations, is more than the deck's memory for training."""
    rows = deck_answer().data()["rows"]
    assert isinstance(rows, list)
    for row in rows:
        if row["dtype"] != "int8":
            assert row["state_bytes"] > row["deck_training_gb"] * 10**9
            assert row["gpus"] >= row["deck_gpus"]


def test_one_model_has_three_rows_and_a_type_has_one() -> None:
    assert [row["dtype"] for row in deck_answer("Qwen3-14B").data()["rows"]] == [  # type: ignore[union-attr]
        "fp32",
        "fp16",
        "int8",
    ]
    assert len(deck_answer("Qwen3-14B", dtype=Dtype.FP16).data()["rows"]) == 1  # type: ignore[arg-type]


def test_a_type_that_the_deck_does_not_print_is_refused() -> None:
    with pytest.raises(SizeError, match="bf16 is not a type that the deck prints"):
        deck_row(7, Dtype.BF16)
    with pytest.raises(SizeError, match="gpu-mem: got 0"):
        deck_answer(gpu_memory_gb=0)
