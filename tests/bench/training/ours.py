"""Our loop over the rows of the benchmark, without checkpoints, with any setting of a recipe."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

from tests.bench.training import work
from tests.bench.training.contest import Turns
from tests.bench.training.work import Work
from workloads.train.measure import LossCurve


def train(turns: Turns, *, size: Work, **settings: Any) -> float:
    """Train with `settings` of the recipe's `train` section."""
    curve = Curve(turns)
    loop(size, curve=curve, settings=settings).run()
    return fmean(curve.losses)


class Curve(LossCurve):
    """A loss curve without a file: the loop tells it of every step."""

    def __init__(self, turns: Turns | None) -> None:
        self._turns = turns
        self.losses: list[float] = []

    def append(self, result: Any) -> None:
        """Take note of a step."""
        self.losses.append(result.loss)
        if self._turns:
            self._turns.step(result.num_tokens)


class NoCheckpoints:
    """A run that is measured saves nothing."""

    resumed_loss: float | None = None

    def due(self, step: int) -> bool:
        """No step asks for one."""
        return False

    def load(self, state: Any) -> bool:
        """Nothing to resume from."""
        return False

    def save(self, state: Any, step: int, *, loss: float | None = None) -> None:
        """Save nothing."""

    def wait(self) -> None:
        """Wait for nothing."""

    def load_best(self, state: Any) -> bool:
        """Nothing is the best."""
        return False


def loop(size: Work, *, curve: Curve, settings: dict[str, Any]) -> Any:
    """Return our Trainer, ready to run on this process's CPU."""
    import torch

    from workloads.common.dist import World
    from workloads.data.token_rows import Writer
    from workloads.recipes.train import LoraConfig, TrainConfig
    from workloads.train.loop import Progress, Stream, Trainer, TrainState, Watchdog
    from workloads.train.run import StopRequest
    from workloads.train.strategy import build_optimizer, build_precision, compiled, spread_ddp
    from workloads.train.tasks.causal_lm import CausalLm

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
        with Writer(Path(folder) / "tokens_train.parquet") as writer:
            writer.write(work.token_rows(size.num_rows))
        task = CausalLm(config, model_dir=work.model_dir(), dataset=Path(folder))
    device = torch.device("cpu")
    world = World(rank=0, local_rank=0, world_size=1, device=device)
    model = compiled(config, task.build(device))
    strategy = spread_ddp(task.loss(model, device), model, world)
    optimizer = build_optimizer(strategy.trained, lr=config.learning_rate, weight_decay=0.0)
    return Trainer(
        config=config,
        task=task,
        stream=Stream(packs=task.rows, seed=work.SEED, length=task.length),
        strategy=strategy,
        precision=build_precision(config, device),
        state=TrainState(
            model=model,
            optimizer=optimizer,
            scaler=None,
            strategy="ddp",
            world=world,
            progress=Progress(
                step=0,
                position=0,
                rows_per_step=config.micro_batch_size * config.gradient_accumulation,
                world_size=1,
                fingerprint="",
            ),
        ),
        num_steps=size.num_steps,
        checkpoints=NoCheckpoints(),
        stop=StopRequest(),
        watchdog=Watchdog(3600, fail=_stop),
        curve=curve,
        events=None,
        metrics=None,
    )


def _stop(error: Exception) -> NoReturn:
    sys.exit(f"tests.bench.train: {error}")
