"""What a run learns: a task knows its model, its rows and its loss, and nothing of ranks.

causal_lm learns packed chats; the others classify texts, make text of text, and classify, segment
or search images. A task reads its rows when it is opened, before torch is imported and a GPU is
taken. `rows` are those to learn, `eval_rows` those held out (none without train.eval), `digest` and
`eval_digest` hashes of them in order, `num_dropped` how many were left out or cut because they were
too long, `data_file` what they were read from (None where they were generated).

Data sets of the others are folders: `rows_train.jsonl` with {"text", "label"} or {"source",
"target"}, or `images_train.npz` with arrays `pixel_values` (rows, channels, height, width) and
`labels`: a class a row; for segmentation a class a pixel (rows, height, width); for detection a
class an object (rows, objects) beside `boxes` (rows, objects, 4). Held-out rows in
`rows_test.jsonl` or `images_test.npz`. `generated` makes rows and a tiny random model, for a run
that needs no file.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.models import load_tokenizer
from workloads.data import token_rows
from workloads.data.manifest import json_lines
from workloads.data.token_rows import IGNORED, Pack
from workloads.recipes.train import TrainConfig

if TYPE_CHECKING:
    import torch

GENERATED = "generated"
"""Data set, and start of a model's name, that are made here: nothing is read."""


def is_generated(model: str) -> bool:
    """Return whether a recipe's model is one that is made here."""
    return model.startswith(f"{GENERATED}/")


@contextlib.contextmanager
def held_out() -> Iterator[None]:
    """Within, what is wrong with held-out rows says which setting asks for them."""
    try:
        yield
    except DataError as error:
        raise DataError(
            f"train.eval: needs held-out rows: {error}; prepare the data with data.test_ratio, or "
            "set train.eval=null"
        ) from error


class CausalLm:
    """The task `causal_lm`."""

    def __init__(
        self, config: TrainConfig, *, model_dir: Path | None, dataset: Path | None
    ) -> None:
        if model_dir is None or dataset is None:
            raise ConfigError(
                "train.task causal_lm: needs a model and a data set of its own, nothing generated"
            )
        self._config, self.model_dir = config, model_dir
        self.data_file: Path | None = dataset / "tokens_train.parquet"
        self.rows, self.digest, self.num_dropped = self._read(self.data_file)
        self.eval_rows: Sequence[Pack] = ()
        self.eval_digest = ""
        if config.eval is not None:
            with held_out():
                path, last = dataset / "tokens_test.parquet", config.eval.rows
                self.eval_rows, self.eval_digest, _ = self._read(path, last=last)
        self._pad_id: int | None = None
        self._multiple = 1

    def _read(self, path: Path, *, last: int | None = None) -> tuple[Sequence[Pack], str, int]:
        """Return a file's rows, or the `last` ones, their hash, and how many were too long."""
        config, examples = self._config, token_rows.read_parquet(path)
        limit = config.sequence_length
        token_rows.check_tokens(path, examples, model_dir=self.model_dir)
        fits = examples.lengths <= limit
        num_dropped = len(examples) - int(fits.sum())
        if num_dropped and config.overlong == "refuse":
            raise DataError(
                f"{path}: {num_dropped} of {len(examples)} examples are longer than "
                f"train.sequence_length {limit}; raise it, or set train.overlong=drop"
            )
        kept = examples.cut(limit) if config.overlong == "cut" else examples.select(fits)
        if last is not None:
            kept = kept.select(kept.offsets[:-1] >= kept.offsets[max(0, len(kept) - last)])
        if not kept.num_label_tokens:
            raise DataError(f"{path}: no token to learn in {len(kept)} examples")
        if config.packing:
            rows = token_rows.pack(kept, sequence_length=limit)
        else:
            rows = [
                Pack(rows=kept, indices=(index,), num_tokens=length)
                for index, length in enumerate(kept.lengths.tolist())
            ]
        return rows, kept.digest, num_dropped

    def length(self, row: Pack) -> int:
        """Return the tokens of a row."""
        return row.num_tokens

    def build(self, device: torch.device, *, empty: bool = False) -> Any:
        """Return the model ready to train; `empty`: on the meta device, without its weights."""
        from workloads.train import model

        self._read_tokenizer()
        if self._config.packing:
            model.refuse_packing(self.model_dir)
        return model.build_model(self.model_dir, self._config, device=device, empty=empty)

    def loss(self, model: Any, device: torch.device) -> torch.nn.Module:
        """Return a module whose forward gives the loss of a batch, summed over its labels."""
        from workloads.train.inputs import compiles_layers
        from workloads.train.model import AssistantLoss

        # Tensor cores take rows of whole tiles, and compiled layers see few lengths.
        compiles = compiles_layers(self._config, has_gpu=device.type == "cuda")
        self._multiple = 128 if compiles or device.type == "cuda" else 1
        return AssistantLoss(model, chunk_tokens=self._config.loss_chunk_tokens or None)

    def collate(self, rows: Sequence[Pack]) -> token_rows.Batch:
        """Return one micro batch; no rows give the shortest one there is, without labels."""
        assert self._pad_id is not None
        real = rows or [min(self.rows, key=self.length)]
        batch = token_rows.collate(real, pad_id=self._pad_id, multiple=self._multiple)
        if rows:
            return batch
        labels_BT = batch.labels_BT.clone().fill_(IGNORED)
        return replace(batch, learned_N=None, labels_BT=labels_BT, num_tokens=0, num_label_tokens=0)

    def num_positions(self, batch: token_rows.Batch) -> int:
        """Return the positions that the model computes on: tokens and padding."""
        return batch.input_ids_BT.numel()

    def save_preprocessor(self, folder: Path) -> None:
        """Write what turns raw input into rows beside a model: the tokenizer."""
        self._read_tokenizer().save_pretrained(folder)

    def _read_tokenizer(self) -> Any:
        tokenizer = load_tokenizer(self.model_dir)
        self._pad_id = tokenizer.pad_token_id
        return tokenizer


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
            made.append(_image(config.task, kind, draw))
    return made


def _image(task: str, quadrant: int, draw: random.Random) -> Row:
    """Return noise with one bright quadrant, by which it is classified, segmented or boxed."""
    side = 8 if task == "image_classification" else 32
    half = side // 2
    noise = np.random.default_rng(draw.randrange(2**32))
    pixels = noise.normal(0, 0.1, (3, side, side)).astype(np.float32)
    row, column = divmod(quadrant, 2)
    place = (slice(half * row, half * (row + 1)), slice(half * column, half * (column + 1)))
    pixels[:, *place] += 1
    if task == "semantic_segmentation":
        classes = np.zeros((side, side), dtype=np.int64)
        classes[place] = 1 + quadrant
        return Row(inputs=pixels, labels=classes)
    if task == "object_detection":
        box = (0.25 + column / 2, 0.25 + row / 2, 0.5, 0.5)
        return Row(inputs=pixels, labels=(quadrant,), boxes=np.array([box], dtype=np.float32))
    return Row(inputs=pixels, labels=(quadrant,))


_ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
_T5 = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}
_SEGFORMER = {
    "hidden_sizes": [8, 16, 24, 32],
    "depths": [1, 1, 1, 1],
    "num_attention_heads": [1, 1, 2, 2],
    "decoder_hidden_size": 32,
}
_YOLOS = {**_ENCODER, "image_size": [32, 32], "patch_size": 16, "num_detection_tokens": 2}
_WORDS = {"vocab_size": VOCABULARY}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "generated/bert": ("BertConfig", {**_ENCODER, **_WORDS, "max_position_embeddings": 64}),
    "generated/t5": ("T5Config", {**_T5, **_WORDS, "decoder_start_token_id": 0}),
    "generated/vit": ("ViTConfig", {**_ENCODER, "image_size": 8, "patch_size": 4}),
    "generated/segformer": ("SegformerConfig", _SEGFORMER),
    "generated/yolos": ("YolosConfig", _YOLOS),
}
"""transformers' config of each, and its sizes."""


AUTO_CLASSES = {
    "text_classification": "AutoModelForSequenceClassification",
    "text_to_text": "AutoModelForSeq2SeqLM",
    "image_classification": "AutoModelForImageClassification",
    "semantic_segmentation": "AutoModelForSemanticSegmentation",
    "object_detection": "AutoModelForObjectDetection",
}
OF_IMAGES = ("image_classification", "semantic_segmentation", "object_detection")
NOT_LEARNED = 255
"""Class of a pixel that nobody learns, as data sets of segmentation have it: ADE20K, Cityscapes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One input with its label: token ids or pixels; a class, token ids, or a class a pixel."""

    inputs: Any
    labels: Any
    boxes: Any = None
    """Of each object of `labels`: middle (x, y), width and height, in shares of the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tensors of one micro batch, by the model's own argument names."""

    inputs: dict[str, torch.Tensor]
    labels: torch.Tensor
    """A class per row, pixel or object, or tokens per row; IGNORED where nothing is learned."""
    num_tokens: int
    num_label_tokens: int
    """What the loss is summed over: labels, and images where objects are searched for."""
    boxes: torch.Tensor | None = None
    """(rows, objects, 4); of detection only."""

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return replace(
            self,
            inputs={name: value.to(device) for name, value in self.inputs.items()},
            labels=self.labels.to(device),
            boxes=None if self.boxes is None else self.boxes.to(device),
        )


class SmallTask:
    """The tasks beside causal_lm."""

    def __init__(
        self, config: TrainConfig, *, model: str, model_dir: Path | None, dataset: Path | None
    ) -> None:
        self._config, self._model, self.model_dir = config, model, model_dir
        name = "images_{}.npz" if config.task in OF_IMAGES else "rows_{}.jsonl"
        self.data_file = dataset and dataset / name.format("train")
        if is_generated(model) and model not in MODELS:
            raise ConfigError(
                f"model: got {model!r}, expected one of {', '.join(MODELS)}, or a folder"
            )
        self.rows: Sequence[Row]
        self.rows, self.num_dropped = self._read(self.data_file, config.seed)
        self.num_classes = 1 + _greatest(self.rows)
        self.eval_rows: Sequence[Row] = ()
        if config.eval is not None:
            path = dataset and dataset / name.format("test")
            with held_out():
                self.eval_rows = self._read(path, config.seed + 1)[0][-config.eval.rows :]
                most = _greatest(self.eval_rows)
                if config.task != "text_to_text" and most >= self.num_classes:
                    known = f"the training rows 0 to {self.num_classes - 1}"
                    raise DataError(f"{path}: holds class {most}, {known}")
        self.digest, self.eval_digest = _digest(self.rows), _digest(self.eval_rows)

    def _read(self, path: Path | None, seed: int) -> tuple[list[Row], int]:
        """Return the rows of a file, or those made from a seed, and how many were too long."""
        if path is None:
            return rows(self._config, seed), 0
        if self._config.task in OF_IMAGES:
            return _read_images(path, self._config.task), 0
        if self.model_dir is None:
            raise ConfigError(f"model: a generated one has no tokenizer for {path}; name a folder")
        tokenizer = load_tokenizer(self.model_dir)
        found: list[Row] = []
        num_dropped = 0
        limit, overlong = self._config.sequence_length, self._config.overlong
        for number, values in json_lines(path):
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

    def build(self, device: torch.device, *, empty: bool = False) -> Any:
        """Return the model ready to train; `empty`: on the meta device, without its weights."""
        import torch

        if not empty:
            return self._ready(empty=False).to(device)
        with torch.device("meta"):
            return self._ready(empty=True)

    def _ready(self, *, empty: bool) -> Any:
        """Return the model with adapters and checkpointing."""
        import torch
        import transformers

        from workloads.train import model as models

        config, head = self._config, {"num_labels": self.num_classes}
        options = {} if config.task == "text_to_text" else head
        folder = {"trust_remote_code": False, **options}
        kind: Any = getattr(transformers, AUTO_CLASSES[config.task])
        dtype = models.base_dtype(config)
        torch.manual_seed(config.seed)  # a classifier of a folder's model has a new head
        if self.model_dir is not None and not empty:
            folder |= {"use_safetensors": True}
            model = kind.from_pretrained(self.model_dir, dtype=dtype, **folder)
        else:
            if self.model_dir is None:
                name, sizes = MODELS[self._model]
                shape = getattr(transformers, name)(**sizes, **options)
            else:
                shape = transformers.AutoConfig.from_pretrained(self.model_dir, **folder)
            model = kind.from_config(shape, dtype=dtype)
        if config.has_adapters:
            model = models.attach_lora(model, config)
        return models.recompute(model, config.gradient_checkpointing).train()

    def loss(self, model: Any, device: torch.device) -> torch.nn.Module:
        """Return the module of the summed loss."""
        from workloads.train.model import SmallLoss

        del device
        return SmallLoss(model)

    def collate(self, rows: Sequence[Row]) -> Batch:
        """Return one micro batch; no rows give one without labels."""
        import torch

        real, pad = rows or [min(self.rows, key=self.length)], torch.nn.utils.rnn.pad_sequence
        if self._config.task in OF_IMAGES:
            pixels = torch.stack([torch.from_numpy(row.inputs) for row in real]).float()
            inputs, num_tokens = {"pixel_values": pixels}, len(rows)
        else:
            ids = [torch.tensor(row.inputs) for row in real]
            seen = pad([torch.ones_like(row) for row in ids], batch_first=True)
            inputs = {"input_ids": pad(ids, batch_first=True), "attention_mask": seen}
            num_tokens = sum(self.length(row) for row in rows)
        targets = [torch.as_tensor(row.labels, dtype=torch.long) for row in real]
        labels = pad(targets, batch_first=True, padding_value=IGNORED)
        if not rows:
            labels = torch.full_like(labels, IGNORED)
        found = [torch.from_numpy(row.boxes) for row in real if row.boxes is not None]
        return Batch(
            inputs=inputs,
            labels=labels,
            num_tokens=num_tokens,
            num_label_tokens=len(rows) if found else int((labels != IGNORED).sum()),
            boxes=pad(found, batch_first=True) if found else None,
        )

    def num_positions(self, batch: Batch) -> int:
        """Return tokens and padding; images where images are learned."""
        ids = batch.inputs.get("input_ids")
        return len(batch.labels) if ids is None else ids.numel()

    def save_preprocessor(self, folder: Path) -> None:
        """Write the tokenizer, where the model has one."""
        if self.model_dir is not None and self._config.task not in OF_IMAGES:
            load_tokenizer(self.model_dir).save_pretrained(folder)


def _greatest(rows: Sequence[Row]) -> int:
    return max((int(np.max(row.labels)) for row in rows if len(row.labels)), default=0)


def _digest(rows: Sequence[Row]) -> str:
    def plain(value: Any) -> Any:
        return getattr(value, "tobytes", lambda: value)()

    text = repr([(plain(row.inputs), plain(row.labels), *([] if row.boxes is None else
                 [plain(row.boxes)])) for row in rows])  # fmt: skip
    return hashlib.sha256(text.encode()).hexdigest()


def _read_images(path: Path, task: str) -> list[Row]:
    try:
        with np.load(path, allow_pickle=False) as file:
            pixels, labels = file["pixel_values"], file["labels"]
            boxes = file["boxes"] if task == "object_detection" else None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as images: {error}") from error
    wanted = {
        "image_classification": ("(rows,)", pixels.shape[:1]),
        "semantic_segmentation": ("(rows, height, width)", (*pixels.shape[:1], *pixels.shape[2:])),
        "object_detection": ("(rows, objects)", (*pixels.shape[:1], *labels.shape[1:2])),
    }
    name, shape = wanted[task]
    if pixels.ndim != 4 or labels.shape != shape or not len(labels):
        raise DataError(
            f"{path}: got pixel_values {pixels.shape} and labels {labels.shape}, expected (rows, "
            f"channels, height, width) and {name}"
        )
    if boxes is not None and boxes.shape != (*labels.shape, 4):
        raise DataError(f"{path}: got boxes {boxes.shape}, expected {(*labels.shape, 4)}")
    try:
        return [
            Row(
                inputs=image.astype(np.float32),
                **_targets(task, labels[index], None if boxes is None else boxes[index]),
            )
            for index, image in enumerate(pixels)
        ]
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _targets(task: str, labels: Any, boxes: Any) -> dict[str, Any]:
    """Return labels and boxes of one image; ValueError for what is no class or lies outside."""
    if task == "image_classification":
        return {"labels": (_class(labels.item()),)}
    if task == "semantic_segmentation":
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise ValueError(f"labels: got {labels.dtype} from {labels.min()}, expected whole "
                             "numbers from 0")  # fmt: skip
        return {"labels": np.where(labels == NOT_LEARNED, IGNORED, labels.astype(np.int64))}
    there = labels != -1  # images have different numbers of objects
    classes = tuple(_class(label.item()) for label in labels[there])
    found = boxes[there].astype(np.float32)
    middle, size = found[:, :2], found[:, 2:]
    inside = (middle - size / 2 >= -1e-3) & (middle + size / 2 <= 1 + 1e-3) & (size > 0)
    if not inside.all():
        raise ValueError(
            f"boxes: got {found[~inside.all(axis=1)][0].tolist()}, expected the middle (x, y), "
            "width and height in shares of the image, inside it"
        )
    return {"labels": classes, "boxes": found}


def _class(label: Any) -> int:
    """Return the number of a class; ValueError for what counts none."""
    number = int(label)
    if number < 0 or (isinstance(label, float) and number != label):
        raise ValueError(f"label: got {label!r}, expected a whole number from 0")
    return number


Task = CausalLm | SmallTask


def open_task(
    config: TrainConfig, *, model: str, model_dir: Path | None, dataset: Path | None
) -> Task:
    """Return the task of a recipe with its rows; DataError when they cannot be used."""
    if config.task == "causal_lm":
        return CausalLm(config, model_dir=model_dir, dataset=dataset)
    return SmallTask(config, model=model, model_dir=model_dir, dataset=dataset)
