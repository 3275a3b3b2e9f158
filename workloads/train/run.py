"""The job `train`: reads a recipe's data, builds the run, trains, writes what it leaves behind.

Owns the order of these and the run record. What can be refused is refused first: paths, rows, the
plan and this node's packages come before a rank takes a GPU.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from workloads.common import atomic, hardware
from workloads.common.dist import World, environment_rank, world
from workloads.common.job import Job, section_of
from workloads.common.log import log
from workloads.common.record import job_id
from workloads.train import plan as plans
from workloads.train.config import RESUMABLE, TrainConfig
from workloads.train.plan import Plan, checked_plan, choose_strategy, read_plan
from workloads.train.requirements import check_node
from workloads.train.tasks import GENERATED, Task, is_generated, open_task

if TYPE_CHECKING:
    from workloads.train.loop import Trainer
    from workloads.train.metrics import Throughput
    from workloads.train.precision import Precision
    from workloads.train.run_folder import RunFolder
    from workloads.train.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is known before a rank takes a GPU."""

    job: Job
    config: TrainConfig
    task: Task
    model_dir: Path | None
    """None for a model that is made here."""
    strategy: str
    plan: Plan | None


def main(job: Job) -> None:
    """Train, write the final weights and point `latest` at them."""
    config = job.recipe.train
    if config is None:
        raise section_of(job.recipe, "train")
    # Paths first: a missing one is told before torch is imported and a GPU is taken.
    model, places = job.recipe.model, job.places
    model_dir = None if is_generated(model) else places.model_dir(model)
    dataset = None if config.dataset == GENERATED else places.data_path(config.dataset)
    places.path("chkpt")
    rank, _, world_size = environment_rank()
    plan = checked_plan(read_plan(), model=model, config=config, world_size=world_size)
    strategy = choose_strategy(plan, config)
    task = open_task(config, model=model, model_dir=model_dir, dataset=dataset)
    check_node(config, strategy)
    if rank == 0:
        _keep_inputs(job, config, plan)
    run = Run(job=job, config=config, task=task, model_dir=model_dir, strategy=strategy, plan=plan)
    with world(cpu_threads=config.cpu_threads, timeout_s=config.checkpoint.timeout_s) as here:
        job.record.hardware = hardware.detect(hardware.device_name())
        _train(run, here)


def fingerprint(config: TrainConfig, model: str, task: Task) -> str:
    """Return the hash of everything that a resumed run must share with its checkpoint."""
    values = {k: v for k, v in asdict(config).items() if k not in RESUMABLE}
    text = json.dumps([values, model, task.digest], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def num_train_steps(config: TrainConfig, *, num_rows: int, rows_per_step: int) -> int:
    """Return the train steps of the run; what is left of the epochs at the end counts as one."""
    if config.max_steps is not None:
        return config.max_steps
    assert config.epochs is not None
    return -(-config.epochs * num_rows // rows_per_step)


def _keep_inputs(job: Job, config: TrainConfig, plan: Plan | None) -> None:
    """Write the run's settings, and its plan, beside the record: they are pulled with it."""
    values = {"recipe": job.recipe.name, "model": job.recipe.model, "train": asdict(config)}
    text = json.dumps(values, indent=2, default=str)
    _keep(job, "config", "config.json", f"{text}\n")
    if plan is not None:
        _keep(job, "plan", plans.FILE_NAME, plan.path.read_text(encoding="utf-8"))


def _keep(job: Job, artifact: str, name: str, text: str) -> None:
    atomic.write_text(job.results_dir / name, text)
    job.record.artifacts[artifact] = str(job.results_dir / name)


def _train(run: Run, here: World) -> None:
    import torch

    from workloads.train.checkpoint import FolderCheckpoints
    from workloads.train.export import save_original
    from workloads.train.faults import Watchdog
    from workloads.train.loop import Trainer
    from workloads.train.metrics import LossCurve
    from workloads.train.optimizer import build_optimizer
    from workloads.train.order import Stream
    from workloads.train.precision import build_precision
    from workloads.train.run_folder import run_folder
    from workloads.train.signals import stop_request
    from workloads.train.state import Progress, TrainState

    config, task, job = run.config, run.task, run.job
    strategy = build_strategy(run, here)
    _say_what_is_trained(run, strategy, here)
    optimizer = build_optimizer(
        strategy.trained, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    precision = build_precision(config, here.device)
    _settle(strategy, task, precision, here)
    torch.manual_seed(config.seed + here.rank)
    state = TrainState(
        model=strategy.model,
        optimizer=optimizer,
        scaler=precision.scaler,
        strategy=strategy.kind,
        world=here,
        progress=Progress(
            step=0,
            position=0,
            rows_per_step=config.micro_batch_size * config.gradient_accumulation * here.world_size,
            world_size=here.world_size,
            fingerprint=fingerprint(config, job.recipe.model, task),
        ),
    )
    timeout_s = config.checkpoint.timeout_s
    with stop_request() as stop, Watchdog(timeout_s, fail=job.fail) as watchdog:
        checkpoints = FolderCheckpoints(
            folder=run_folder(job.places, resume=config.resume),
            world=here,
            config=config.checkpoint,
            keep_last=config.keep_last,
            stop=stop,
            model_config=_model_config(strategy.model),
        )
        checkpoints.load(state)
        folder = checkpoints.folder
        if config.save_original and here.is_main:
            original = save_original(
                folder.path, model_dir=run.model_dir, model=strategy.model, task=task
            )
            job.record.artifacts["original_dir"] = str(original)
        curve_path = job.results_dir / "loss_curve.jsonl"
        first_step = state.progress.step
        trainer = Trainer(
            config=config,
            task=task,
            stream=Stream(
                packs=task.rows,
                seed=config.seed,
                end=config.epochs * len(task.rows) if config.epochs else None,
                length=task.length,
            ),
            strategy=strategy,
            precision=precision,
            state=state,
            num_steps=num_train_steps(
                config, num_rows=len(task.rows), rows_per_step=state.progress.rows_per_step
            ),
            checkpoints=checkpoints,
            stop=stop,
            watchdog=watchdog,
            curve=LossCurve(curve_path, first_step=first_step) if here.is_main else None,
            events=_events(job) if here.is_main else None,
        )
        throughput = trainer.run()
    job.record.artifacts |= {"checkpoint_dir": str(folder.path), "loss_curve": str(curve_path)}
    _finish(run, here, trainer, throughput, folder)


def build_strategy(run: Run, here: World) -> Strategy:
    """Return the model, spread over ranks as `run.strategy` says."""
    import torch

    from workloads.train.strategy import spread_ddp, spread_fsdp

    config, task = run.config, run.task
    if run.strategy == "ddp":
        model = compiled(config, _kernels(config, task.build(here.device), here))
        return spread_ddp(task.loss(model, here.device), model, here)
    source = task.build(torch.device("cpu"), sharded=True) if here.is_main else None
    empty = _kernels(config, task.build_empty(here.device), here)
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
    from workloads.train.strategy import repeated_layers

    if config.compile:
        for layer in repeated_layers(model):
            layer.compile()
    return model


def _settle(strategy: Strategy, task: Task, precision: Precision, here: World) -> None:
    from workloads.train.strategy import settle

    def blank_loss() -> Any:
        with precision.forward():
            return strategy.module(task.collate([]).to(here.device))

    settle(strategy.module, blank_loss)


def _kernels(config: TrainConfig, model: Any, here: World) -> Any:
    from workloads.train.kernels import use_liger

    return use_liger(model, config, here.device)


def _model_config(model: Any) -> str:
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    return base.config.to_json_string()


def _events(job: Job) -> Any:
    from workloads.train.tensorboard import EventWriter

    logs = job.places.path("logs") if job.places.has("logs") else job.results_dir
    writer = EventWriter(logs / "tensorboard" / job_id())
    job.record.artifacts["tensorboard"] = str(writer.path.parent)
    return writer


def _say_what_is_trained(run: Run, strategy: Strategy, here: World) -> None:
    from workloads.train.model import num_parameters

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


def _finish(
    run: Run, here: World, trainer: Trainer, throughput: Throughput, folder: RunFolder
) -> None:
    import torch

    from workloads.train.model import flops_per_token

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
        **trainer.ledger.metrics(recomputes=config.gradient_checkpointing, method=config.method),
    }
    if throughput.losses:
        job.record.metrics |= {
            "first_loss": throughput.losses[0],
            "last_loss": throughput.losses[-1],
        }
    if throughput.stalls_s:
        job.record.metrics["checkpoint_stall_s"] = fmean(throughput.stalls_s)
    if here.device.type == "cuda":
        job.record.metrics["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if run.plan is not None:
            planned = run.plan.memory_gib_per_rank["total"]
            job.record.metrics["planned_gpu_memory_gib"] = planned
    agree(here, lambda: _write(run, here, strategy, whole, folder))


def _write(
    run: Run, here: World, strategy: Strategy, whole: dict[str, Any], folder: RunFolder
) -> None:
    """Write final weights, summary and gate; rank 0 only. Raises GateError last."""
    from workloads.train import export, gate, run_folder, summary

    config, job = run.config, run.job
    export.write_final(
        folder.final, model=strategy.model, whole=whole, config=config, task=run.task
    )
    kind = "adapter_dir" if config.has_adapters else "model_dir"
    job.record.artifacts[kind] = str(folder.final)
    if config.export_merged and run.model_dir is not None:
        merged = export.write_merged(
            folder.path, model_dir=run.model_dir, adapter=folder.final, config=config
        )
        job.record.artifacts["merged_dir"] = str(merged)
    run_folder.publish(folder)
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
    _keep(job, "summary", name, text)
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
