"""The end of a run: figures in its record, final weights, summary, and the gate's judgement.

All ranks come here; rank 0 writes, and what stops it is raised on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.log import log
from workloads.common.record import job_id
from workloads.train import export, gate, run_folder, summary
from workloads.train.given import Run
from workloads.train.loop import Trainer
from workloads.train.metrics import Throughput
from workloads.train.model import flops_per_token
from workloads.train.run_folder import RunFolder
from workloads.train.strategy import Strategy


def finish(
    run: Run, here: World, trainer: Trainer, throughput: Throughput, folder: RunFolder
) -> None:
    """Put the run's figures in its record and write what it leaves; GateError comes last."""
    config, job, strategy = run.config, run.job, trainer.strategy
    whole = strategy.whole_weights(only_trained=config.has_adapters)
    job.record.engine = "transformers"
    job.record.metrics |= {
        "num_train_steps": trainer.num_steps,
        **throughput.metrics(
            world_size=here.world_size,
            flops_per_token=flops_per_token(strategy.model, method=config.method),
            device_name=job.record.hardware.device if job.record.hardware else "",
        ),
    }
    if throughput.losses:
        job.record.metrics |= {
            "first_loss": throughput.losses[0],
            "last_loss": throughput.losses[-1],
        }
    elif trainer.checkpoints.resumed_loss is not None:
        # The last step was trained before a restart: its loss is the checkpoint's.
        job.record.metrics["last_loss"] = trainer.checkpoints.resumed_loss
    if throughput.stalls_s:
        job.record.metrics["checkpoint_stall_s"] = fmean(throughput.stalls_s)
    if here.device.type == "cuda":
        job.record.metrics["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if run.plan is not None:
            planned = run.plan.memory_gib_per_rank["total"]
            job.record.metrics["planned_gpu_memory_gib"] = planned
    # To write and to merge whole models takes longer than a step may.
    agree(here.without_timeout(), lambda: _write(run, here, strategy, whole, folder))


def _write(
    run: Run, here: World, strategy: Strategy, whole: dict[str, Any], folder: RunFolder
) -> None:
    """Write final weights, summary and gate; rank 0 only. Raises GateError last."""
    config, job = run.config, run.job
    export.write_final(
        folder.final, model=strategy.model, whole=whole, config=config, task=run.task
    )
    kind = "adapter_dir" if config.has_adapters else "model_dir"
    job.record.artifacts[kind] = str(folder.final)
    if config.export_merged:
        assert run.model_dir is not None, "only causal_lm merges, and its model is a folder"
        merged = export.write_merged(
            folder.path, model_dir=run.model_dir, adapter=folder.final, config=config
        )
        job.record.artifacts["merged_dir"] = str(merged)
    log(f"final {'adapter' if config.has_adapters else 'model'} in {folder.final}")
    found: tuple[gate.Criterion, ...] = ()
    if config.gate is not None:
        found = gate.judge(
            config.gate,
            final=folder.final,
            metrics=job.record.metrics,
            is_gpu=here.device.type == "cuda",
        )
        for each in found:
            log(f"gate: {each}")
    if gate.verdict(found) == "FAIL":
        log(f"{run_folder.LATEST} stays as it is: nobody evaluates or serves what failed its gate")
    else:
        run_folder.publish(folder)
    text = summary.summary_text(
        job=job_id(),
        recipe=job.recipe.name,
        model=job.recipe.model,
        strategy=run.strategy,
        world_size=here.world_size,
        metrics=job.record.metrics,
        artifacts=job.record.artifacts,
        gate=found,
    )
    name = f"train_{job_id()}_summary.txt"
    job.keep("summary", name, text)
    if job.places.has("logs"):
        atomic.write_text(job.places.path("logs") / name, text)
    gate.refuse_failed(found)


def agree(here: World, choose: Callable[[], Any]) -> Any:
    """Return rank 0's answer on all ranks; its error is raised on all of them."""
    outcome: Any = None
    if here.is_main:
        try:
            outcome = choose()
        except Exception as error:
            outcome = error
    outcome = here.broadcast(outcome)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
