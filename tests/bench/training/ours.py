"""Our loop over the rows of the benchmark, without checkpoints, with any setting of a recipe."""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.training import work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work


def train(turns: Turns, *, size: Work, **settings: Any) -> float:
    """Train with `settings` of the recipe's `train` section."""
    trainer = loop(size, turns=turns, settings=settings)
    trainer.run()
    return fmean(result.loss for result in trainer.curve.results)


def loop(size: Work, *, turns: Turns | None, settings: dict[str, Any]) -> Any:
    """Return our Trainer, ready to run on this process's CPU."""
    import torch

    from tests.gpu.work import Steps, trainer_of
    from workloads.data.token_rows import write_parquet
    from workloads.recipes.train import LoraConfig, TrainConfig
    from workloads.train.tasks import CausalLm

    packing = settings.get("packing", True)
    config = TrainConfig(
        **{
            "dataset": "x",
            "dtype": "fp32",
            "lora": LoraConfig(rank=work.RANK, alpha=work.ALPHA),
            "sequence_length": work.LIMIT_TOKENS,
            "micro_batch_size": 1 if packing else work.ROWS_A_STEP,
            "max_steps": size.num_steps,
            "learning_rate": work.LEARNING_RATE,
            "max_grad_norm": work.MAX_GRAD_NORM,
            "checkpoint_every": 0,
            **settings,
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = work.token_rows(size.num_rows)
        write_parquet(Path(folder) / "tokens_train.parquet", [rows])
        task = CausalLm(config, model_dir=work.model_dir(), dataset=Path(folder))
    curve = Steps((lambda result: turns.step(result.num_tokens)) if turns else lambda _: None)
    return trainer_of(config, task, torch.device("cpu"), curve)
