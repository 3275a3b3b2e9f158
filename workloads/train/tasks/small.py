"""Text classifiers, text to text and image classifiers: rows padded, one loss per label.

Data sets are folders: `rows_train.jsonl` with {"text", "label"} or {"source", "target"}, or
`images_train.npz` with arrays `pixel_values` (rows, channels, height, width) and `labels`;
held-out rows in `rows_test.jsonl` or `images_test.npz`.
`generated` makes rows and a tiny random model, for a run that needs no file.
"""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import ConfigError, DataError
from workloads.recipes.train import TrainConfig
from workloads.train.tasks import held_out, is_generated

if TYPE_CHECKING:
    import torch


NUM_ROWS, VOCABULARY, CLASSES = 64, 32, 4
FIRST_WORD = 8
"""Ids below it are special: padding, end, and one mark per class."""


def rows(config: TrainConfig, seed: int) -> list[Any]:
    """Return the rows of a task: the same ones for the same seed."""
    draw = random.Random(seed)
    made: list[Any] = []
    for index in range(NUM_ROWS):
        kind = index % CLASSES
        length = draw.randint(4, min(12, config.sequence_length - 1))
        words = tuple(draw.randrange(FIRST_WORD, VOCABULARY) for _ in range(length))
        if config.task == "text_classification":
            made.append(Row(inputs=(2 + kind, *words), labels=(kind,)))
        elif config.task == "text_to_text":
            made.append(Row(inputs=(2 + kind, *words, 1), labels=(2 + kind, 2 + kind, 1)))
        else:
            made.append(Row(inputs=_image(kind, draw), labels=(kind,)))
    return made


def _image(quadrant: int, draw: random.Random) -> Any:
    import numpy as np

    noise = np.random.default_rng(draw.randrange(2**32))
    pixels = noise.normal(0, 0.1, (3, 8, 8)).astype(np.float32)
    top, left = 4 * (quadrant // 2), 4 * (quadrant % 2)
    pixels[:, top : top + 4, left : left + 4] += 1
    return pixels


def _bert(num_classes: int) -> Any:
    from transformers import BertConfig

    options: dict[str, Any] = {"num_labels": num_classes}
    return BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        **options,
    )


def _t5(num_classes: int) -> Any:
    from transformers import T5Config

    del num_classes
    options: dict[str, Any] = {"decoder_start_token_id": 0}
    return T5Config(
        vocab_size=VOCABULARY,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        **options,
    )


def _vit(num_classes: int) -> Any:
    from transformers import ViTConfig

    options: dict[str, Any] = {"num_labels": num_classes}
    return ViTConfig(
        image_size=8,
        patch_size=4,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        **options,
    )


MODELS: dict[str, Callable[[int], Any]] = {
    "generated/bert": _bert,
    "generated/t5": _t5,
    "generated/vit": _vit,
}


AUTO_CLASSES = {
    "text_classification": "AutoModelForSequenceClassification",
    "text_to_text": "AutoModelForSeq2SeqLM",
    "image_classification": "AutoModelForImageClassification",
}
IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One input with its label: token ids or pixels, a class or token ids."""

    inputs: Any
    labels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors of one micro batch, by the model's own argument names."""

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor
    """A class per row, or tokens per row; IGNORED where nothing is learned."""
    num_tokens: int
    num_label_tokens: int

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return Batch(
            inputs={name: value.to(device) for name, value in self.inputs.items()},
            labels=self.labels.to(device),
            num_tokens=self.num_tokens,
            num_label_tokens=self.num_label_tokens,
        )


class SmallTask:
    """The tasks beside causal_lm."""

    def __init__(
        self, config: TrainConfig, *, model: str, model_dir: Path | None, dataset: Path | None
    ) -> None:
        self._config, self._model, self.model_dir = config, model, model_dir
        name = "images_{}.npz" if config.task == "image_classification" else "rows_{}.jsonl"
        self.data_file = dataset and dataset / name.format("train")
        if is_generated(model) and model not in MODELS:
            raise ConfigError(
                f"model: got {model!r}, expected one of {', '.join(MODELS)}, or a folder"
            )
        self.rows: Sequence[Row]
        self.rows, self.num_dropped = self._read(self.data_file, config.seed)
        self.num_classes = 1 + max(max(row.labels) for row in self.rows)
        self.eval_rows: Sequence[Row] = ()
        if config.eval is not None:
            path = dataset and dataset / name.format("test")
            with held_out():
                self.eval_rows = self._read(path, config.seed + 1)[0][-config.eval.rows :]
                most = max(max(row.labels) for row in self.eval_rows)
                if config.task != "text_to_text" and most >= self.num_classes:
                    known = f"the training rows 0 to {self.num_classes - 1}"
                    raise DataError(f"{path}: holds class {most}, {known}")
        self.digest, self.eval_digest = _digest(self.rows), _digest(self.eval_rows)

    def _read(self, path: Path | None, seed: int) -> tuple[list[Row], int]:
        """Return the rows of a file, or those made from a seed, and how many were too long."""
        if path is None:
            return rows(self._config, seed), 0
        if self._config.task == "image_classification":
            return _read_images(path), 0
        if self.model_dir is None:
            raise ConfigError(f"model: a generated one has no tokenizer for {path}; name a folder")
        from workloads.common.models import load_tokenizer

        tokenizer = load_tokenizer(self.model_dir)
        found: list[Row] = []
        num_dropped = 0
        limit, overlong = self._config.sequence_length, self._config.overlong
        for number, values in _json_lines(path):
            try:
                row = self._row(tokenizer, values)
                if max(len(row.inputs), len(row.labels)) > limit:
                    num_dropped += 1
                    if overlong != "cut":
                        continue
                    # By the tokenizer, which keeps the tokens that end a text.
                    row = self._row(tokenizer, values, truncation=True, max_length=limit)
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(f"{path}:{number}: {error!r}; see docs/training.md") from error
            found.append(row)
        if num_dropped and self._config.overlong == "refuse":
            raise DataError(
                f"{path}: {num_dropped} rows are longer than train.sequence_length "
                f"{self._config.sequence_length}; raise it, or set train.overlong=drop"
            )
        if not found:
            raise DataError(f"{path}: no row")
        return found, num_dropped

    def _row(self, tokenizer: Any, values: Any, **options: Any) -> Row:
        if self._config.task == "text_classification":
            source, target = values["text"], (_class(values["label"]),)
        else:
            source, target = values["source"], tokenizer(values["target"], **options).input_ids
        return Row(inputs=tuple(tokenizer(source, **options).input_ids), labels=tuple(target))

    def length(self, row: Row) -> int:
        """Return the tokens of a row; 1 for an image."""
        return len(row.inputs) if isinstance(row.inputs, tuple) else 1

    def build(self, device: torch.device) -> Any:
        """Return the model ready to train."""
        import torch
        import transformers

        from workloads.train.model import base_dtype

        dtype = base_dtype(self._config)
        kind = getattr(transformers, AUTO_CLASSES[self._config.task])
        torch.manual_seed(self._config.seed)  # a classifier of a folder's model has a new head
        if self.model_dir is None:
            shape = MODELS[self._model](self.num_classes)
            model = kind.from_config(shape, dtype=dtype)
        else:
            model = kind.from_pretrained(
                self.model_dir, dtype=dtype, use_safetensors=True, **self._head()
            )
        return self._ready(model).to(device)

    def build_empty(self, device: torch.device) -> Any:
        """Return the model on the meta device."""
        import torch
        import transformers

        from workloads.train.model import base_dtype

        del device
        if self.model_dir is None:
            shape = MODELS[self._model](self.num_classes)
        else:
            shape = transformers.AutoConfig.from_pretrained(self.model_dir, **self._head())
        kind = getattr(transformers, AUTO_CLASSES[self._config.task])
        with torch.device("meta"):
            model = kind.from_config(shape, dtype=base_dtype(self._config))
            return self._ready(model)

    def _head(self) -> dict[str, Any]:
        is_classifier = self._config.task != "text_to_text"
        own = {"num_labels": self.num_classes} if is_classifier else {}
        return {"trust_remote_code": False, **own}

    def _ready(self, model: Any) -> Any:
        if self._config.has_adapters:
            from workloads.train.model import attach_lora

            model = attach_lora(model, self._config)
        if self._config.gradient_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        return model.train()

    def loss(self, model: Any, device: torch.device) -> torch.nn.Module:
        """Return the module of the summed loss."""
        from workloads.train.model import SmallLoss

        del device
        return SmallLoss(model)

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Return one micro batch; no rows give one without labels."""
        import torch

        real = rows or [min(self.rows, key=self.length)]
        if self._config.task == "image_classification":
            pixels = torch.stack([torch.from_numpy(row.inputs) for row in real]).float()
            inputs, num_tokens = {"pixel_values": pixels}, len(rows)
        else:
            ids = [torch.tensor(row.inputs) for row in real]
            padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
            lengths = torch.tensor([len(row) for row in ids])
            mask = torch.arange(padded.shape[1])[None] < lengths[:, None]
            inputs = {"input_ids": padded, "attention_mask": mask.long()}
            num_tokens = sum(self.length(row) for row in rows)
        targets = [torch.tensor(row.labels) for row in real]
        labels = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=IGNORED)
        if not rows:
            labels = torch.full_like(labels, IGNORED)
        return Batch(
            inputs=inputs,
            labels=labels,
            num_tokens=num_tokens,
            num_label_tokens=int((labels != IGNORED).sum()),
        )

    def num_positions(self, batch: Batch) -> int:
        """Return tokens and padding; images for a classifier of images."""
        ids = batch.inputs.get("input_ids")
        return len(batch.labels) if ids is None else ids.numel()

    def save_preprocessor(self, folder: Path) -> None:
        """Write the tokenizer, where the model has one."""
        if self.model_dir is not None and self._config.task != "image_classification":
            from workloads.common.models import load_tokenizer

            load_tokenizer(self.model_dir).save_pretrained(folder)


def _digest(rows: Sequence[Row]) -> str:
    text = repr([(getattr(row.inputs, "tobytes", lambda r=row: r.inputs)(), row.labels)
                 for row in rows])  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()


def _read_images(path: Path) -> list[Row]:
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["pixel_values"], file["labels"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as images: {error}") from error
    if pixels.ndim != 4 or labels.shape != pixels.shape[:1] or not len(labels):
        raise DataError(
            f"{path}: got pixel_values {pixels.shape} and labels {labels.shape}, expected (rows, "
            "channels, height, width) and (rows,)"
        )
    try:
        return [
            Row(inputs=image.astype(np.float32), labels=(_class(label.item()),))
            for image, label in zip(pixels, labels, strict=True)
        ]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _class(label: Any) -> int:
    """Return the number of a class; ValueError for what counts none."""
    number = int(label)
    if number < 0 or (isinstance(label, float) and number != label):
        raise ValueError(f"label: got {label!r}, expected a whole number from 0")
    return number


def _json_lines(path: Path) -> list[tuple[int, Any]]:
    try:
        # Not splitlines(): JSON may hold U+2028 and U+0085 as they are, and they end no line of it.
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    rows: list[tuple[int, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append((number, json.loads(line)))
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
    return rows
