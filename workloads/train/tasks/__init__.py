"""What a run learns: a task knows its model, its rows and its loss, and nothing of ranks.

Owns the protocol and which task is which. A task reads its rows when it is opened, before torch is
imported and a GPU is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workloads.common.exit_codes import DataError
from workloads.recipes.train import TrainConfig

if TYPE_CHECKING:
    import torch

GENERATED = "generated"
"""Data set, and start of a model's name, that are made here: nothing is read."""


class Task(Protocol):
    """One kind of learning."""

    rows: Sequence[Any]
    eval_rows: Sequence[Any]
    """Held-out rows; none without train.eval."""
    num_dropped: int
    """Rows left out or cut because they were too long."""
    data_file: Path | None
    """The file that the rows were read from; None where they were generated."""
    digest: str
    """Hash of all rows, in order."""
    eval_digest: str
    """The same of the held-out rows."""

    def length(self, row: Any) -> int:
        """Return the tokens of a row."""
        ...

    def build(self, device: torch.device) -> Any:
        """Return the model ready to train."""
        ...

    def build_empty(self, device: torch.device) -> Any:
        """Return the same model on the meta device."""
        ...

    def loss(self, model: Any, device: torch.device) -> torch.nn.Module:
        """Return a module whose forward gives the loss of a batch, summed over its labels."""
        ...

    def collate(self, rows: Sequence[Any]) -> Any:
        """Return one micro batch; no rows give one that has no label."""
        ...

    def num_positions(self, batch: Any) -> int:
        """Return the positions that the model computes on."""
        ...

    def save_preprocessor(self, folder: Path) -> None:
        """Write what turns raw input into rows beside a model, such as the tokenizer."""
        ...


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


def open_task(
    config: TrainConfig, *, model: str, model_dir: Path | None, dataset: Path | None
) -> Task:
    """Return the task of a recipe with its rows; DataError when they cannot be used."""
    if config.task == "causal_lm":
        from workloads.train.tasks.causal_lm import CausalLm

        return CausalLm(config, model_dir=model_dir, dataset=dataset)
    from workloads.train.tasks.small import SmallTask

    return SmallTask(config, model=model, model_dir=model_dir, dataset=dataset)
