"""The model of a run, ready to train: made, with its kernels, compiled, spread over the ranks.

Owns the order of these. What each of them does is in the module of its name.
"""

from __future__ import annotations

from typing import Any

import torch

from workloads.common.dist import World
from workloads.common.log import log
from workloads.train.config import TrainConfig
from workloads.train.given import Run
from workloads.train.kernels import use_liger
from workloads.train.model import num_parameters
from workloads.train.precision import Precision
from workloads.train.strategy import Strategy, repeated_layers, settle, spread_ddp, spread_fsdp
from workloads.train.tasks import Task


def build_strategy(run: Run, here: World) -> Strategy:
    """Return the model, spread over ranks as `run.strategy` says."""
    config, task = run.config, run.task
    if run.strategy == "ddp":
        model = compiled(config, use_liger(task.build(here.device), config, here.device))
        return spread_ddp(task.loss(model, here.device), model, here)
    source = task.build(torch.device("cpu"), sharded=True) if here.is_main else None
    empty = use_liger(task.build_empty(here.device), config, here.device)
    return spread_fsdp(
        compiled(config, empty),
        lambda model: task.loss(model, here.device),
        source,
        here,
        dtype=config.dtype,
        offload=run.strategy == "offload",
    )


def compiled(config: TrainConfig, model: Any) -> Any:
    """Return `model` with its layers to be compiled one by one, where the recipe wants that."""
    if config.compile:
        for layer in repeated_layers(model):
            layer.compile()
    return model


def settle_buckets(strategy: Strategy, task: Task, precision: Precision, here: World) -> None:
    """Let DDP lay out its buckets by a batch without labels, before a checkpoint is loaded."""

    def blank_loss() -> Any:
        with precision.forward():
            return strategy.module(task.collate([]).to(here.device))

    settle(strategy.module, blank_loss)


def say_what_is_trained(run: Run, strategy: Strategy, here: World) -> None:
    """Log how many weights are trained and how they are spread; the record gets the numbers."""
    num_all, num_trained = num_parameters(strategy.model)
    config, metrics = run.config, run.job.record.metrics
    metrics |= {
        "num_parameters": num_all,
        "num_trained_parameters": num_trained,
        "num_rows": len(run.task.rows),
        "num_dropped_examples": run.task.num_dropped,
    }
    if strategy.kind == "fsdp":
        metrics["num_weights_on_rank_0"] = strategy.num_weights_here
    dora = " with DoRA" if config.has_adapters and config.lora.dora else ""
    log(
        f"{run.job.recipe.model}: {num_all:,} parameters, {num_trained:,} trained "
        f"({config.method}{dora}, {config.dtype}); {run.strategy}, world size {here.world_size} "
        f"on {here.device.type}; {len(run.task.rows)} rows, {run.task.num_dropped} too long"
    )
