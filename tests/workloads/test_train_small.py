"""Rows of the tasks beside causal_lm: what is read, what is cut, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workloads.common.exit_codes import DataError
from workloads.recipes.train import TrainConfig
from workloads.train.tasks import open_task

TEXTS: dict[str, Any] = {"task": "text_classification", "sequence_length": 12}


def opened(folder: Path, model_dir: Path, **values: Any) -> Any:
    """Returns the task of these settings over the rows in `folder`."""
    config = TrainConfig(dataset="rows", method="full", max_steps=1, learning_rate=0.1, **values)
    return open_task(config, model="tiny", model_dir=model_dir, dataset=folder)


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    """Writes `rows` as lines; returns their folder."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows_train.jsonl").write_text(text, encoding="utf-8")
    return folder


def test_a_row_ends_where_its_line_ends(tmp_path: Path, model_dir: Path) -> None:
    """Not at U+2028 or U+0085, which JSON may hold as they are."""
    write(tmp_path, {"text": "a\u2028b", "label": 0}, {"text": "c\u0085d", "label": 1})
    assert [row.labels for row in opened(tmp_path, model_dir, **TEXTS).rows] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("overlong", "lengths"), [("cut", [12, 1, 12, 2]), ("drop", [1, 2])], ids=["cut", "drop"]
)
def test_a_text_that_is_too_long_is_cut_or_dropped_as_declared(
    overlong: str, lengths: list[int], tmp_path: Path, model_dir: Path
) -> None:
    texts = ["a" * 13, "b", "c" * 40, "dd"]
    write(tmp_path, *({"text": text, "label": kind} for kind, text in enumerate(texts)))
    task = opened(tmp_path, model_dir, overlong=overlong, **TEXTS)
    assert [len(row.inputs) for row in task.rows] == lengths
    assert task.num_dropped == 2


def test_a_target_that_is_too_long_is_cut_with_its_source(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path, {"source": "a" * 3, "target": "b" * 30})
    task = opened(tmp_path, model_dir, task="text_to_text", sequence_length=12, overlong="cut")
    assert [(len(row.inputs), len(row.labels)) for row in task.rows] == [(3, 12)]


@pytest.mark.parametrize("label", [-1, 0.5, "x", None])
def test_a_label_that_counts_no_class_is_refused_with_its_line(
    label: Any, tmp_path: Path, model_dir: Path
) -> None:
    write(tmp_path, {"text": "a", "label": 0}, {"text": "b", "label": label})
    with pytest.raises(DataError, match=r"rows_train\.jsonl:2: "):
        opened(tmp_path, model_dir, **TEXTS)


def test_a_text_that_is_none_is_refused_with_its_line(tmp_path: Path, model_dir: Path) -> None:
    write(tmp_path, {"text": 5, "label": 0})
    with pytest.raises(DataError, match=r"rows_train\.jsonl:1: "):
        opened(tmp_path, model_dir, **TEXTS)


@pytest.mark.parametrize("label", [-1, 0.5])
def test_an_image_with_a_label_that_counts_no_class_is_refused(
    label: float, tmp_path: Path, model_dir: Path
) -> None:
    """It would end a step inside the loss, on a GPU as a failure of the device."""
    pixels = np.zeros((2, 3, 4, 4))
    np.savez(tmp_path / "images_train.npz", pixel_values=pixels, labels=np.array([0, label]))
    with pytest.raises(DataError, match=r"label: got .*, expected a whole number from 0"):
        opened(tmp_path, model_dir, task="image_classification")


@pytest.mark.parametrize("size_bytes", [0, 100])
def test_images_that_were_written_in_part_are_refused(
    size_bytes: int, tmp_path: Path, model_dir: Path
) -> None:
    path = tmp_path / "images_train.npz"
    np.savez(path, pixel_values=np.zeros((2, 3, 4, 4)), labels=np.array([0, 1]))
    path.write_bytes(path.read_bytes()[:size_bytes])
    with pytest.raises(DataError, match="cannot be read as images"):
        opened(tmp_path, model_dir, task="image_classification")
