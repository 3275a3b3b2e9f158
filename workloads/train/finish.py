"""A run on its device: trained, then final weights, the gate that judges them, and a summary.

All ranks come here; rank 0 writes, and what stops it is raised on all of them.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import safe_open
from safetensors.torch import save_file

from workloads.common import atomic
from workloads.common.dist import World
from workloads.common.exit_codes import NotRunError, WorkloadError
from workloads.common.log import at, log
from workloads.common.models import load_model, torch_dtype
from workloads.common.record import METRICS_FILE, Publisher, job_id
from workloads.job import Job
from workloads.recipes.train import GateConfig, TrainConfig
from workloads.train import run_folder
from workloads.train.checkpoint import FolderCheckpoints
from workloads.train.inputs import Run, StopRequest, fingerprint, num_train_steps
from workloads.train.loop import Progress, Trainer, TrainState, Watchdog, learning_rate_factor
from workloads.train.measure import Events, LossCurve
from workloads.train.model import build_outline, flops_per_token
from workloads.train.run_folder import RunFolder
from workloads.train.strategy import (
    Strategy,
    all_weights,
    autocast,
    build_optimizer,
    build_scaler,
    build_strategy,
    say_what_is_trained,
    settle,
    trained_weights,
    whole_weights,
)
from workloads.train.tasks import Task

Outcome = Literal["PASS", "FAIL", "NOT RUN"]


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of a gate."""

    name: str
    outcome: Outcome
    detail: str
    is_needed: bool = True
    """False where this hardware has nothing to judge."""

    def __str__(self) -> str:
        return f"{self.outcome:7} {self.name}: {self.detail}"


def judge(
    gate: GateConfig, *, final: Path, metrics: Mapping[str, float], is_gpu: bool
) -> tuple[Criterion, ...]:
    """Return every criterion of a run that ended, with its outcome."""
    present = final.is_dir() and any(final.glob("*.safetensors"))
    where = f"{final}" if present else f"{final} holds no weights"
    found = [
        Criterion("exit code", "PASS", "the run reached its last step"),
        Criterion("memory", "PASS", "no rank ran out of it"),
        Criterion("final/", "PASS" if present else "FAIL", where),
    ]
    if gate.max_loss is not None:
        name = "eval loss" if "eval_loss" in metrics else "loss"
        loss = metrics.get("eval_loss", metrics.get("last_loss"))
        found.append(_bound(name, loss, "below", gate.max_loss))
    if (least := gate.min_tokens_per_s_per_gpu) is not None:
        name, speed = "tokens/s/GPU", metrics.get("train_tokens_per_s_per_gpu")
        absent = Criterion(name, "NOT RUN", "this job had no GPU", is_needed=False)
        found.append(_bound(name, speed, "above", least) if is_gpu else absent)
    return tuple(found)


def _bound(
    name: str, value: float | None, side: Literal["below", "above"], limit: float
) -> Criterion:
    wanted = f"wanted {side} {limit:g}"
    if value is None:
        return Criterion(name, "NOT RUN", f"not measured in this run; {wanted}")
    good = value < limit if side == "below" else value > limit
    return Criterion(name, "PASS" if good else "FAIL", f"{value:.4g}, {wanted}")


def verdict(found: Sequence[Criterion]) -> Outcome:
    """Return the outcome of all criteria together."""
    outcomes = {each.outcome for each in found if each.is_needed}
    return "FAIL" if "FAIL" in outcomes else "NOT RUN" if "NOT RUN" in outcomes else "PASS"


def refuse_failed(found: Sequence[Criterion]) -> None:
    """Raise WorkloadError when a criterion failed, NotRunError when one was not measured."""
    outcome = verdict(found)
    if outcome == "PASS":
        return
    said = [
        f"{each.name} {each.detail}" for each in found if each.outcome == outcome and each.is_needed
    ]
    error = WorkloadError if outcome == "FAIL" else NotRunError
    raise error(f"gate: {'; '.join(said)}; the model is saved, the bounds are in train.gate")


def save_original(run_dir: Path, model_dir: Path | None, model: Any, task: Task) -> Path:
    """Copy the model as it was before the first step to `original/`; once, also after a resume."""
    target = run_dir / "original"
    if target.exists():
        return target
    at(f"writing {target}")
    with atomic.new_directory(target, readable=True) as partial:
        if model_dir is None:
            # Made here, so it is tiny: a copy without its adapters is what there was before them.
            base = copy.deepcopy(model).unload() if hasattr(model, "peft_config") else model
            base.save_pretrained(partial)
            task.save_preprocessor(partial)
        else:
            shutil.copytree(model_dir, partial, dirs_exist_ok=True)
    log(f"original model in {target}")
    return target


FILE_BYTES = 5 * 10**9
"""Of the weights in a file of final/: as much of a divided model is whole on rank 0 at a time."""


def write_final(
    target: Path, *, strategy: Strategy, config: TrainConfig, task: Task, here: World
) -> None:
    """Write the adapter, or the whole model, with its tokenizer to `target`; every rank calls it.

    Weights under the names that files gave them go file by file, each by another rank; transformers
    names the others, and gathers all on rank 0. DCP's HuggingFaceStorageWriter would write each
    weight twice (its shards, then the whole), and hang where one rank fails (torch 2.15).
    """
    at(f"writing {target}")
    weights: dict[str, Any] = (trained_weights if config.has_adapters else all_weights)(
        strategy.model
    )
    dtype = None if config.has_adapters else torch_dtype(config.dtype)
    files: dict[str, list[str]] = {"": [*weights]}
    index = None
    if strategy.has_names_of_files and not config.has_adapters:
        blank = {k: torch.empty(v.shape, dtype=dtype, device="meta") for k, v in weights.items()}
        split = split_torch_state_dict_into_shards(blank, max_shard_size=FILE_BYTES)
        files = {"": [], **split.filename_to_tensors}
        if split.is_sharded:
            index = json.dumps({"metadata": split.metadata, "weight_map": split.tensor_to_filename})

    def save(file: str, whole: dict[str, torch.Tensor]) -> Exception | None:
        try:
            if file:
                save_file(whole, partial / file, metadata={"format": "pt"})
            elif here.is_main:
                strategy.model.save_pretrained(partial, state_dict=whole)
        except Exception as error:
            return error
        return None

    def complete() -> None:
        if index:
            atomic.write_text(partial / "model.safetensors.index.json", index)
        task.save_preprocessor(partial)
        folder.close()

    apart = here.apart()  # to write a file takes longer than a step may
    with contextlib.ExitStack() as folder:
        new = atomic.new_directory(target, replace=True, readable=True)
        partial = apart.agree(lambda: folder.enter_context(new))
        # transformers first, which removes files that it did not write; then as many at a time as
        # there are ranks. What stops one is raised on all.
        listed, at_once = [*files.items()], here.world_size
        rest = [listed[first : first + at_once] for first in range(1, len(listed), at_once)]
        for some in (listed[:1], *rest):
            mine: tuple[str, dict[str, torch.Tensor]] = ("", {})
            for writer, (file, names) in enumerate(some):
                part, keep = {name: weights[name] for name in names}, writer == here.rank
                whole = whole_weights(part, keep=keep, dtype=dtype)
                mine = (file, whole) if keep else mine
            for error in filter(None, apart.gather(save(*mine))):
                raise error
        apart.agree(complete)


def write_merged(run_dir: Path, *, model_dir: Path, adapter: Path, config: TrainConfig) -> Path:
    """Write `adapter` merged into its base to `merged/`: a model that needs no peft."""
    import peft
    from transformers import AutoConfig

    at(f"merging {adapter} into its model")
    dtype, cpu = torch_dtype(config.dtype), torch.device("cpu")
    target = run_dir / "merged"
    # The base is read again in 16 bits: a merge into 4-bit weights would round the adapter away.
    with atomic.new_directory(target, replace=True, readable=True) as partial:
        beside = shutil.ignore_patterns("adapter_*", "README.md")
        shutil.copytree(adapter, partial, ignore=beside, dirs_exist_ok=True)
        if (outline := build_outline(model_dir, config, device=cpu)) is not None:
            merge_files(*outline, adapter, partial)
            shape = AutoConfig.from_pretrained(model_dir, trust_remote_code=False)
            shape.dtype = dtype
            shape.save_pretrained(partial)
            for path in model_dir.glob("generation_config.json"):
                shutil.copy2(path, partial)
        else:
            base = load_model(model_dir, dtype=dtype, device=cpu)
            model: Any = peft.PeftModel.from_pretrained(base, adapter)
            model.merge_and_unload().to(dtype).save_pretrained(partial)
    log(f"merged model in {target}")
    return target


def merge_files(
    model: Any, weights: Mapping[str, tuple[Path, str]], adapter: Path, partial: Path
) -> None:
    """Write the files of `weights`, which `model` outlines, merged by peft; one is in memory.

    Of layers that are offloaded to the disk peft 0.21 keeps what it has merged in memory.
    """
    import peft

    peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(adapter), device="cpu"))
    files: dict[Path, dict[str, str]] = {}
    for name, (path, tensor) in weights.items():
        files.setdefault(path, {})[tensor] = name
    size = 0
    for path, tensors in files.items():
        merged: dict[str, torch.Tensor] = {}
        with safe_open(path, framework="pt") as file:
            for tensor, name in tensors.items():
                stand_in = model.get_parameter(name)
                merged[tensor] = file.get_tensor(tensor).to(stand_in.dtype)
                owner, of_adapted, _ = name.rpartition(".base_layer.weight")
                if of_adapted:
                    tuner = model.get_submodule(owner)
                    layer = tuner.get_base_layer()
                    layer.weight = torch.nn.Parameter(merged[tensor], requires_grad=False)
                    tuner.merge()
                    merged[tensor], layer.weight = layer.weight.data, stand_in
        save_file(merged, partial / path.name, metadata={"format": "pt"})
        size += sum(each.nbytes for each in merged.values())
    if len(files) > 1:
        names = {tensor: path.name for path, tensor in weights.values()}
        index = {"metadata": {"total_size": size}, "weight_map": names}
        atomic.write_text(partial / "model.safetensors.index.json", json.dumps(index))


def headline(metrics: Mapping[str, float]) -> list[str]:
    """Return training time, throughput and GPU memory; NOT RUN where one was not measured."""
    a_rank = metrics.get("train_tokens_per_s_per_gpu")
    also = "" if a_rank is None else f", {a_rank:,.1f} a rank"
    rate, few = f"tokens/s{also}", "fewer than two steps were trained"
    lines = (
        ("training time", "train_time_s", "s", "not a step was trained"),
        ("throughput", "train_tokens_per_s", rate, few),
        ("GPU memory", "peak_gpu_memory_gib", "GiB a GPU", "this job had no GPU"),
    )
    return [
        f"{what:15}" + (f"{metrics[name]:,.1f} {unit}" if name in metrics else f"NOT RUN: {why}")
        for what, name, unit, why in lines
    ]


def train_and_finish(run: Run, here: World, stop: StopRequest) -> None:
    """Build the model over all ranks, train it, and write the record, exports and figures."""
    config, task, job = run.config, run.task, run.job
    at(f"loading {job.recipe.model}")
    strategy = build_strategy(run, here)
    say_what_is_trained(run, strategy, here)
    optimizer = build_optimizer(
        strategy.trained, lr=config.learning_rate, weight_decay=config.weight_decay
    )
    forward = partial(autocast, config, here.device, kind=strategy.kind)

    def blank_loss() -> torch.Tensor:
        with forward():
            return strategy.module(task.collate([]).to(here.device))

    settle(strategy.module, blank_loss)
    torch.manual_seed(config.seed + here.rank)
    state = TrainState(
        model=strategy.model,
        optimizer=optimizer,
        scaler=build_scaler(config, here.device),
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
    checkpoints = FolderCheckpoints(
        folder=run_folder.run_folder(job.places, resume=config.resume, keep_in=config.keep_in),
        world=here,
        config=config.checkpoint,
        keep_last=config.keep_last,
        stop=stop,
        model_config=strategy.model.config.to_json_string(),
    )
    with Watchdog(timeout_s, fail=job.fail):
        checkpoints.load(state)
    folder = checkpoints.folder
    if config.save_original:  # apart: to copy a model takes longer than a step may
        save = partial(save_original, folder.path, run.model_dir, strategy.model, task)
        job.record.artifacts["original_dir"] = str(here.apart().agree(save))
    events = _events(job) if here.is_main else None
    closing = contextlib.closing(events) if events else contextlib.nullcontext()
    with closing, Watchdog(timeout_s, fail=job.fail) as watchdog:
        curve_path = job.results_dir / "loss_curve.jsonl"
        first_step = state.progress.step
        num_steps = num_train_steps(
            config,
            num_rows=len(task.rows),
            rows_per_step=state.progress.rows_per_step,
            step=first_step,
            position=state.progress.position,
        )
        if first_step == num_steps:
            log(f"all {num_steps} steps are done already")
        elif first_step:  # a run that is prolonged has another schedule than it had before
            factor = learning_rate_factor(first_step, config=config, num_steps=num_steps)
            log(
                f"goes on after step {first_step} of {num_steps} with schedule {config.schedule} "
                f"over all {num_steps}, from a learning rate of {factor * config.learning_rate:.3g}"
            )
        trainer = Trainer(
            config=config,
            task=task,
            strategy=strategy,
            forward=forward,
            state=state,
            num_steps=num_steps,
            checkpoints=checkpoints,
            stop=stop,
            watchdog=watchdog,
            curve=LossCurve(curve_path, first_step=first_step) if here.is_main else None,
            events=events,
        )
        published: Any = contextlib.nullcontext()
        if here.is_main:
            page = partial(trainer.ledger.page, num_steps=num_steps, world_size=here.world_size)

            def read() -> bytes:
                return page(step=state.progress.step, last_commit_s=checkpoints.last_commit_s)

            job.record.artifacts["metrics"] = str(job.results_dir / METRICS_FILE)
            published = Publisher(read, results_dir=job.results_dir, kind="train")
        try:
            with published, stop.deferred():
                trainer.run()
        finally:
            # Also of a run that is stopped or fails: it has used its time.
            metrics = job.record.metrics
            recomputed = metrics["num_recomputed_layers"] / max(1, metrics["num_layers"])
            metrics |= trainer.ledger.shares(recomputed=recomputed, method=config.method)
    job.record.artifacts |= {"checkpoint_dir": str(folder.path), "loss_curve": str(curve_path)}
    finish(run, here, trainer, folder)


def _events(job: Job) -> Any:
    logs = job.places.path("logs") if job.places.has("logs") else job.results_dir
    if find_spec("tensorboard") is None:
        log("no TensorBoard events: the package tensorboard is not installed here")
        return None
    events = Events(logs / "tensorboard" / job_id())
    job.record.artifacts["tensorboard"] = str(events.folder)
    return events


def finish(run: Run, here: World, trainer: Trainer, folder: RunFolder) -> None:
    """Put the run's figures in its record and write what it leaves; its gate is judged last."""
    config, job, strategy = run.config, run.job, trainer.strategy
    progress, ledger, checkpoints = trainer.state.progress, trainer.ledger, trainer.checkpoints
    metrics = job.record.metrics
    metrics |= _validated(trainer)
    if trainer.has_stopped_early:
        best = progress.validated
        job.record.reason = (
            f"stopped early after step {progress.step} of {trainer.num_steps}: {best.num_worse} "
            f"validations without a lower loss than {best.best_loss:.4f} of step {best.best_step}"
        )
        log(job.record.reason)
    job.record.engine = "transformers"
    metrics["num_train_steps"] = progress.step
    metrics |= ledger.rates(
        world_size=here.world_size,
        flops_per_token=flops_per_token(strategy.model, method=config.method),
        device_name=job.record.hardware.device if job.record.hardware else "",
    )
    if ledger.first and ledger.last:
        metrics |= {"first_loss": ledger.first.loss, "last_loss": ledger.last.loss}
    elif checkpoints.resumed_loss is not None:
        # The last step was trained before a restart: its loss is the checkpoint's.
        metrics["last_loss"] = checkpoints.resumed_loss
    if stalls_s := ledger.seconds["checkpoint"]:
        metrics["checkpoint_stall_s"] = fmean(stalls_s)
    if checkpoints.longest_save_s:
        metrics["longest_checkpoint_save_s"] = checkpoints.longest_save_s
    if here.device.type == "cuda":
        metrics["peak_gpu_memory_gib"] = torch.cuda.max_memory_allocated() / 2**30
        if run.plan is not None:
            metrics["planned_gpu_memory_gib"] = run.plan.memory_gib_per_rank["total"]
    write_final(folder.final, strategy=strategy, config=config, task=run.task, here=here)
    # To merge whole models takes longer than a step may.
    here.apart().agree(lambda: _write(run, here, folder))


def _validated(trainer: Trainer) -> dict[str, float | int]:
    """Return what the record has of validations; the weights become those of the best one."""
    found, keeps = trainer.state.progress.validated, trainer.config.checkpoint.keep_best
    if trainer.config.eval is None or found.loss is None or found.best_loss is None:
        return {}
    is_last = found.best_step == found.step
    takes_best = keeps and not is_last and trainer.checkpoints.load_best(trainer.state)
    return {
        "eval_loss": found.best_loss if takes_best else found.loss,
        "best_eval_loss": found.best_loss,
        "best_eval_step": found.best_step,
        "final_step": found.best_step if takes_best else found.step,
    }


def _write(run: Run, here: World, folder: RunFolder) -> None:
    """Write merged weights, summary and gate, which is judged last; rank 0 only."""
    config, job = run.config, run.job
    kind = "adapter_dir" if config.has_adapters else "model_dir"
    job.record.artifacts[kind] = str(folder.final)
    if config.export_merged:
        assert run.model_dir is not None, "only causal_lm merges, and its model is a folder"
        merged = write_merged(
            folder.path, model_dir=run.model_dir, adapter=folder.final, config=config
        )
        job.record.artifacts["merged_dir"] = str(merged)
    log(f"final {'adapter' if config.has_adapters else 'model'} in {folder.final}")
    found: tuple[Criterion, ...] = ()
    if config.gate is not None:
        found = judge(
            config.gate,
            final=folder.final,
            metrics=job.record.metrics,
            is_gpu=here.device.type == "cuda",
        )
        for each in found:
            log(f"gate: {each}")
    if verdict(found) == "FAIL":
        log(f"{run_folder.LATEST} stays as it is: nobody evaluates or serves what failed its gate")
    else:
        run_folder.publish(folder, job.places)
    metrics, artifacts = job.record.metrics, job.record.artifacts
    lines = [
        f"job        {job_id()}",
        f"recipe     {job.recipe.name}",
        f"model      {job.recipe.model}",
        f"ranks      {here.world_size} ({run.strategy})",
        "",
        *headline(metrics),
        "",
        *(
            f"{k:36} {v:{',' if isinstance(v, int) else ',.4f'}}"
            for k, v in sorted(metrics.items())
        ),
        "",
        *(f"{name:16} {path}" for name, path in sorted(artifacts.items())),
    ]
    if found:
        lines += ["", f"gate: {verdict(found)}", *(f"  {each}" for each in found)]
    text = "\n".join(lines) + "\n"
    name = f"train_{job_id()}_summary.txt"
    job.keep("summary", name, text)
    if job.places.has("logs"):
        atomic.write_text(job.places.path("logs") / name, text)
    refuse_failed(found)
