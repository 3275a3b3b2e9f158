"""Chats for a causal language model: packed rows, loss on what the assistant wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import ConfigError, DataError
from workloads.data.token_rows import (
    IGNORED,
    Batch,
    Pack,
    check_tokens,
    collate,
    pack,
    read_parquet,
)
from workloads.recipes.train import TrainConfig
from workloads.train.tasks import held_out

if TYPE_CHECKING:
    import torch


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
        self.rows, self.digest, self.num_dropped = self._read(self.data_file, model_dir)
        self.eval_rows: Sequence[Pack] = ()
        self.eval_digest = ""
        if config.eval is not None:
            with held_out():
                self.eval_rows, self.eval_digest, _ = self._read(
                    dataset / "tokens_test.parquet", model_dir, last=config.eval.rows
                )
        self._pad_id: int | None = None
        self._multiple = 1

    def _read(
        self, path: Path, model_dir: Path, *, last: int | None = None
    ) -> tuple[Sequence[Pack], str, int]:
        """Return a file's rows, or the `last` ones, their hash, and how many were too long."""
        config, examples = self._config, read_parquet(path)
        limit = config.sequence_length
        check_tokens(path, examples, model_dir=model_dir)
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
            rows = pack(kept, sequence_length=limit)
        else:
            rows = [
                Pack(rows=kept, indices=(index,), num_tokens=length)
                for index, length in enumerate(kept.lengths.tolist())
            ]
        return rows, kept.digest, num_dropped

    def length(self, row: Pack) -> int:
        """Return the tokens of a row."""
        return row.num_tokens

    def build(self, device: torch.device) -> Any:
        """Return the model ready to train."""
        from workloads.train import model

        self._read_tokenizer()
        return model.build_model(self.model_dir, self._config, device=device)

    def build_empty(self, device: torch.device) -> Any:
        """Return the model on the meta device."""
        from workloads.train import model

        self._read_tokenizer()
        return model.build_empty_model(self.model_dir, self._config, device=device)

    def loss(self, model: Any, device: torch.device) -> torch.nn.Module:
        """Return the module of the summed loss."""
        from workloads.train.inputs import compiles_layers
        from workloads.train.model import AssistantLoss

        # Tensor cores take rows of whole tiles, and compiled layers see few lengths.
        compiles = compiles_layers(self._config, has_gpu=device.type == "cuda")
        self._multiple = 128 if compiles or device.type == "cuda" else 1
        return AssistantLoss(model, chunk_tokens=self._config.loss_chunk_tokens or None)

    def collate(self, rows: Sequence[Pack]) -> Batch:
        """Return one micro batch; no rows give the shortest one there is, without labels."""
        assert self._pad_id is not None
        if rows:
            return collate(rows, pad_id=self._pad_id, multiple=self._multiple)
        shortest = min(self.rows, key=self.length)
        return _without_labels(collate([shortest], pad_id=self._pad_id, multiple=self._multiple))

    def num_positions(self, batch: Batch) -> int:
        """Return tokens and padding."""
        return batch.input_ids_BT.numel()

    def save_preprocessor(self, folder: Path) -> None:
        """Write the tokenizer."""
        self._read_tokenizer().save_pretrained(folder)

    def _read_tokenizer(self) -> Any:
        from workloads.common.models import load_tokenizer

        tokenizer = load_tokenizer(self.model_dir)
        self._pad_id = tokenizer.pad_token_id
        return tokenizer


def _without_labels(batch: Batch) -> Batch:
    from dataclasses import replace

    import torch

    return replace(
        batch,
        learned_N=None,
        labels_BT=torch.full_like(batch.labels_BT, IGNORED),
        num_tokens=0,
        num_label_tokens=0,
    )
