"""What transformers' Trainer and TRL's have in common: options, order of rows, counting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.bench.training import work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def options(size: Work, folder: str) -> dict[str, Any]:
    """Return the arguments that make them do what our loop does."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": work.ROWS_A_STEP,
        "max_steps": size.num_steps,
        "learning_rate": work.LEARNING_RATE,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": work.MAX_GRAD_NORM,
        "weight_decay": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": [],
        "logging_strategy": "no",
        "disable_tqdm": True,
        "seed": work.SEED,
        "train_sampling_strategy": "sequential",
    }


class Count:
    """Useful tokens of batches that were put together ahead, told when they were used."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: list[int] = []

    def collator(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the collator, which also notes how many useful tokens each batch has."""

        def counting(features: Any) -> Any:
            self._waiting.append(sum(len(each["input_ids"]) for each in features))
            return collate(features)

        return counting

    def callback(self) -> Any:
        """Return the callback that ends a step."""
        import transformers

        count = self

        class Steps(transformers.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                count.end_step()

        return Steps()

    def end_step(self) -> None:
        """Tell of the oldest batch that waits."""
        self._turns.step(self._waiting.pop(0))
