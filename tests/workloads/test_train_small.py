"""Tasks beside causal_lm: what is read, cut or refused, and what the loss of an image is."""

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


@pytest.mark.feature("S002-77")
@pytest.mark.parametrize(
    ("task", "model"), [("text_classification", "bert"), ("text_to_text", "t5")]
)
def test_a_text_has_the_loss_among_longer_ones_that_it_has_alone(task: Any, model: str) -> None:
    """Nobody reads the padding."""
    import torch

    config = TrainConfig(
        dataset="generated", task=task, method="full", dtype="fp32", max_steps=1, learning_rate=0.1
    )
    made = open_task(config, model=f"generated/{model}", model_dir=None, dataset=None)
    cpu = torch.device("cpu")
    loss = made.loss(made.build(cpu).eval(), cpu)
    rows = made.rows[:6]
    assert len({made.length(row) for row in rows}) > 2
    alone = [loss(made.collate([row])) for row in rows]
    torch.testing.assert_close(loss(made.collate(rows)), sum(alone))


PIXELS = np.random.default_rng(5).normal(0, 1, (3, 3, 32, 32)).astype(np.float32)
MASKS = np.stack([np.full((32, 32), kind) for kind in (0, 1, 2)])
MASKS[:, :8] = 255
# Wider than high: width and height are told apart.
BOXES = np.array([[[0.5, 0.5, 0.5, 0.25], [0.25, 0.75, 0.5, 0.4]], [[0.5, 0.5, 1, 1]] * 2,
                  [[0, 0, 0, 0]] * 2])  # fmt: skip
OBJECTS = np.array([[1, 0], [1, -1], [-1, -1]])
OF_PIXELS: dict[str, Any] = {"task": "semantic_segmentation", "dtype": "fp32"}
OF_OBJECTS: dict[str, Any] = {"task": "object_detection", "dtype": "fp32"}


def of_images(folder: Path, model: str, values: dict[str, Any], **arrays: Any) -> Any:
    """Returns the task over images that a test has written, for a model that is made here."""
    np.savez(folder / "images_train.npz", pixel_values=PIXELS, **arrays)
    config = TrainConfig(dataset="x", method="full", max_steps=1, learning_rate=0.1, **values)
    return open_task(config, model=f"generated/{model}", model_dir=None, dataset=folder)


@pytest.mark.feature("S002-78")
def test_every_image_is_learned_with_its_own_class(tmp_path: Path) -> None:
    values = {"task": "image_classification", "dtype": "fp32"}
    task = of_images(tmp_path, "vit", values, labels=np.array([2, 0, 1]))
    assert [row.labels for row in task.rows] == [(2,), (0,), (1,)]


@pytest.mark.feature("S002-78")
def test_the_loss_of_pixels_is_the_one_of_transformers_and_some_are_not_learned(
    tmp_path: Path,
) -> None:
    import torch

    task = of_images(tmp_path, "segformer", OF_PIXELS, labels=MASKS)
    model = task.build(torch.device("cpu")).eval()
    batch = task.collate(task.rows)
    assert batch.num_label_tokens == 3 * 24 * 32, "the 8 rows of 255 are nobody's"
    assert task.num_classes == 3
    own = model(pixel_values=torch.from_numpy(PIXELS), labels=torch.from_numpy(MASKS)).loss
    found = task.loss(model, torch.device("cpu"))(batch)
    torch.testing.assert_close(found / batch.num_label_tokens, own)


@pytest.mark.feature("S002-78")
def test_the_loss_of_objects_is_the_one_of_transformers_of_each_image(tmp_path: Path) -> None:
    """However the rows are dealt; an image without an object counts, a batch without rows not."""
    import torch

    task = of_images(tmp_path, "yolos", OF_OBJECTS, labels=OBJECTS, boxes=BOXES)
    cpu = torch.device("cpu")
    model = task.build(cpu).eval()
    loss = task.loss(model, cpu)
    assert [row.labels for row in task.rows] == [(1, 0), (1,), ()]
    own = [
        model(
            pixel_values=torch.from_numpy(PIXELS[image : image + 1]),
            labels=[{
                "class_labels": torch.tensor([kind for kind in OBJECTS[image] if kind >= 0]).long(),
                "boxes": torch.from_numpy(BOXES[image][OBJECTS[image] >= 0]).float(),
            }],
        ).loss
        for image in range(3)
    ]  # fmt: skip
    torch.testing.assert_close(loss(task.collate(task.rows)), sum(own))
    torch.testing.assert_close(loss(task.collate(task.rows[:1])), own[0])
    assert task.collate(task.rows).num_label_tokens == 3
    blank = task.collate([])
    assert blank.num_label_tokens == 0
    blank_loss = loss(blank)
    assert blank_loss.item() == 0
    blank_loss.backward()
    assert all(weight.grad is not None for weight in model.class_labels_classifier.parameters())


@pytest.mark.feature("S002-78")
@pytest.mark.parametrize(
    ("values", "arrays", "message"),
    [
        (OF_PIXELS, {"labels": MASKS[:, :16]}, r"labels \(3, 16, 32\), expected .* height, width"),
        (OF_PIXELS, {"labels": MASKS / 2}, "labels: got float64 from 0.0, expected whole numbers"),
        (OF_OBJECTS, {"labels": OBJECTS}, "cannot be read as images: .*boxes"),
        (OF_OBJECTS, {"labels": OBJECTS, "boxes": BOXES[:, :1]}, r"boxes \(3, 1, 4\), expected"),
        (OF_OBJECTS, {"labels": OBJECTS, "boxes": 32 * BOXES}, r"boxes: got \[16.0, .* inside it"),
        (OF_OBJECTS, {"labels": OBJECTS - 1, "boxes": BOXES}, "label: got -2, expected a whole"),
    ],
)  # fmt: skip
def test_masks_and_boxes_that_no_image_has_are_refused(
    values: dict[str, Any], arrays: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        of_images(tmp_path, "segformer", values, **arrays)
