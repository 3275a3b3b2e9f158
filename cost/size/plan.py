"""The plan of one training job, and the file that travels with it: make_plan(spec, job, recipe).

Of a recipe only the keys that decide memory are read, with the trainer's defaults; the trainer
itself checks all of them. workloads/train/inputs.py reads plan.json (schema_version 2) with a
parser of its own.

Also whether a training can save all of its state between the notice of its node and the node's end:
saving(spec, job, plan, recipe, records). Three sources of the time, the best that there is: the
longest save that a run of the same recipe on the same nodes measured; the state's bytes over what
the newest acceptance of the stack wrote into the place of checkpoints; over what the stack
declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from typing import Annotated, Final

from cost.report.layout import picked
from cost.run_record import Outcome, RunRecord
from cost.runs.forecast import STEP_METRIC, Forecast, UnknownRun, newest_first, same_run
from cost.size.choice import Gpus, Verdict, best, least_recomputed, refuse_more_layers, verdicts
from cost.size.memory import (
    BYTES_PER_GB,
    GIB,
    Dtype,
    Method,
    Training,
    trained_weights,
    usable_bytes,
    usable_host_bytes,
)
from cost.size.shape import LINEAR_MODULES, LayersError, ModelShape, SizeError, load_shape
from stacks.catalog import PLATFORMS
from stacks.files import is_map
from stacks.machines import workers_of
from stacks.spec import StackSpec
from stacks.spec.decode import AmountOrZero, CountOrZero, Decoder
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec

_ALL_LINEAR: Final = ("all-linear",)
_OWN: Final = Training()
"""The trainer's defaults."""


def _as_it_is(value: object) -> tuple[object, str | None]:
    """What the trainer itself checks."""
    return value, None


def _layers(value: object) -> tuple[bool | int, str | None]:
    """Layers to recompute; a wrong value is told in the words of workloads/recipes."""
    if not isinstance(value, bool | int):
        got = json.dumps(value, default=str)[:80]
        return False, f"got {got}, expected true or false or a whole number"
    return value, None if value >= 0 else f"got {value}, expected >= 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lora:
    """Section `train.lora`."""

    rank: int = _OWN.rank
    dropout: AmountOrZero = Decimal(0)
    target_modules: tuple[str, ...] = _ALL_LINEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class _Train:
    """Section `train`."""

    method: Method = _OWN.method
    dtype: Dtype = _OWN.dtype
    fp32_embeddings: bool = _OWN.fp32_embeddings
    lora: _Lora = _Lora()
    sequence_length: int = _OWN.sequence_length
    micro_batch_size: int = _OWN.micro_batch_size
    gradient_accumulation: int = _OWN.gradient_accumulation
    max_steps: int | None = None
    loss_chunk_tokens: CountOrZero = _OWN.logits_chunk_tokens or 0
    attention: Annotated[object, _as_it_is] = None
    gradient_checkpointing: Annotated[bool | int | None, _layers] = None
    strategy: Annotated[object, _as_it_is] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRun:
    """What of a recipe decides memory."""

    model: str
    train: _Train
    """Only a run with this section has a plan."""

    @property
    def training(self) -> Training:
        """The training that is asked for; activations stay where the recipe leaves that open."""
        train, names = self.train, self.train.lora.target_modules
        return Training(
            method=train.method,
            dtype=train.dtype,
            fp32_embeddings=train.fp32_embeddings,
            rank=train.lora.rank,
            dropout=float(train.lora.dropout),
            targets=LINEAR_MODULES if names == _ALL_LINEAR else names,
            sequence_length=train.sequence_length,
            micro_batch_size=train.micro_batch_size,
            gradient_accumulation=train.gradient_accumulation,
            gradient_checkpointing=train.gradient_checkpointing or False,
            logits_chunk_tokens=train.loss_chunk_tokens or None,
            attention="sdpa" if train.attention == "sdpa" else "auto",
        )


def recipe_run(recipe: Mapping[str, object], *, at: str) -> RecipeRun:
    """What a recipe with a section `train` trains; `at` starts the path in every message."""
    decoder = Decoder(is_json=True)
    found = decoder.record(RecipeRun, recipe, at)
    if found is None:
        told = "\n".join(decoder.problems)
        raise (LayersError if f"{at}.train.gradient_checkpointing: " in told else SizeError)(told)
    return found


SCHEMA_VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a job is going to need, and how its model is spread."""

    stack: str
    job: str
    recipe: str
    recipe_model: str
    """Model as the recipe names it."""
    shape: ModelShape
    training: Training
    gpus: Gpus
    worker: WorkerSpec
    chosen: Verdict
    all_verdicts: tuple[Verdict, ...]
    steps: int | None
    """Train steps; None where the recipe counts epochs and the stack no tokens."""
    forecast: Forecast | UnknownRun | None

    def to_json(self) -> dict[str, object]:
        """The plan as plain values."""
        chosen = self.chosen
        return {
            "schema_version": SCHEMA_VERSION,
            **picked(self, "stack job recipe model=shape.name recipe_model shape.parameters"),
            **picked(self.training, "method dtype sequence_length micro_batch_size"),
            "gradient_checkpointing": self.training.recomputed_layers(self.shape.layers),
            **picked(self, "shape.layers world_size=gpus.count"),
            "hardware": {
                **picked(self.worker, "platform preset"),
                **picked(self.gpus, "nodes ranks_per_node=per_node"),
                "usable_gib_per_rank": _gib(self.gpus.usable),
            },
            **picked(chosen.sharding, "strategy reshard_after_forward"),
            **picked(chosen, "reason fits runs_here largest_micro_batch"),
            "memory_gib_per_rank": {
                **{part: _gib(amount) for part, amount in chosen.memory.parts.items()},
                "total": _gib(chosen.memory.total),
            },
            "verdicts": [
                {
                    **picked(each, "strategy=sharding.label fits runs_here"),
                    "total_gib_per_rank": _gib(each.memory.total),
                    "reason": each.reason,
                }
                for each in self.all_verdicts
            ],
            "steps": self.steps,
            "forecast": _forecast_json(self.forecast),
        }

    def to_bytes(self) -> bytes:
        """The file, the same bytes for the same plan."""
        return (json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n").encode()


def make_plan(
    spec: StackSpec,
    job: JobSpec,
    recipe: Mapping[str, object],
    *,
    forecast: Forecast | UnknownRun | None = None,
) -> Plan:
    """The plan of a training job with the recipe that it is submitted with, settings applied."""
    run = recipe_run(recipe, at=job.recipe)
    shape, training = load_shape(run.model), run.training
    worker = _smallest(spec, job)
    gpus = _gpus(worker, job)
    if run.train.gradient_checkpointing is None:
        layers = least_recomputed(shape, training, gpus, run.train.strategy)
        training = replace(training, gradient_checkpointing=layers)
    refuse_more_layers(shape, training, at=f"{job.recipe}.train.gradient_checkpointing")
    found = verdicts(shape, training, gpus)
    return Plan(
        stack=spec.name,
        job=job.name,
        recipe=job.recipe,
        recipe_model=run.model,
        shape=shape,
        training=training,
        gpus=gpus,
        worker=worker,
        chosen=best(found),
        all_verdicts=found,
        steps=_steps(run, gpus.count, forecast),
        forecast=forecast,
    )


def _smallest(spec: StackSpec, job: JobSpec) -> WorkerSpec:
    """Of the nodes that Slurm may give the job, those with the least memory a rank."""
    workers = workers_of(spec, job.partition)
    fitting = [each for each in workers if each.hardware and each.gpus >= job.gpus_per_node]
    if not fitting:
        raise SizeError(
            f"{spec.name}: jobs.{job.name}: no nodeset of partition {job.partition!r} has "
            f"{job.gpus_per_node} GPUs a node and a preset of stacks/catalog.py"
        )
    return min(fitting, key=lambda worker: _gpus(worker, job).usable)


def _gpus(worker: WorkerSpec, job: JobSpec) -> Gpus:
    """The ranks of the job; without GPUs one rank has a node's memory."""
    preset = worker.hardware
    assert preset is not None
    platform = PLATFORMS.get(worker.platform)
    if platform is None and job.gpus_per_node:
        raise SizeError(
            f"{job.name}: the memory of a GPU of {worker.platform} is not known; where nodes of "
            f"'{worker.name}' are like a preset of Nebius, declare its platform in node_prices"
        )
    memory_gb = None if platform is None else platform.gpu_memory_gb
    host = usable_host_bytes(preset.memory_gib)
    if job.gpus_per_node and memory_gb is not None:
        usable = usable_bytes(memory_gb)
        return Gpus(nodes=job.nodes, per_node=job.gpus_per_node, usable=usable, host_bytes=host)
    return Gpus(nodes=job.nodes, per_node=1, usable=host)


def _steps(run: RecipeRun, world_size: int, forecast: Forecast | UnknownRun | None) -> int | None:
    if run.train.max_steps is not None:
        return run.train.max_steps
    if not isinstance(forecast, Forecast):
        return None
    # Packed rows are not quite full, so this is the least number.
    per_step = run.training.tokens * run.training.gradient_accumulation * world_size
    return -(-int(forecast.num_tokens) // per_step)


def _forecast_json(forecast: Forecast | UnknownRun | None) -> dict[str, object] | None:
    if forecast is None:
        return None
    if isinstance(forecast, UnknownRun):
        return {"known": False, "reason": str(forecast)}
    usd = forecast.nodes_usd
    return {
        "known": True,
        "tokens": int(forecast.num_tokens),
        "tokens_per_s": float(forecast.speed.tokens_per_s),
        "speed_source": str(forecast.speed),
        "hours": round(float(forecast.hours), 4),
        "nodes_usd": None if usd is None else f"{usd:.4f}",
    }


def _gib(amount: int) -> float:
    return round(amount / GIB, 3)


SAVE_METRIC: Final = "longest_checkpoint_save_s"
WRITE_METRIC: Final = "chkpt_write_gb_per_s"
BYTES_PER_WEIGHT: Final = 12
"""A trained weight and AdamW's two moments of it in fp32: workloads/train/checkpoint.py."""
ELASTIC_BYTES_PER_WEIGHT: Final = 4
"""Of model.safetensors beside them, which a job of changing size saves too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a job has to write after a notice, and what it has for it."""

    job: str
    num_bytes: int
    notice_s: int
    """`jobs[].save_s`: the step that runs and the save have to fit into it."""
    seconds: Decimal | None
    """For the save; None where nobody measured or declared a rate."""
    step_s: Decimal
    """Of the step that runs when the notice comes; 0 where none was measured."""
    source: str
    every_s: int
    """`train.checkpoint.every_s` of the recipe: what is lost at most without the save."""

    @property
    def fits(self) -> bool | None:
        """None: not known."""
        return None if self.seconds is None else self.seconds + self.step_s <= self.notice_s

    def __str__(self) -> str:
        size = f"{Decimal(self.num_bytes) / BYTES_PER_GB:,.2f} GB"
        if self.seconds is None:
            return (
                f"notice: {self.job} has {size} to save within {self.notice_s} s, and how long "
                "that takes is not known: pull a run of it or an acceptance, or declare "
                "preemption.save_gb_per_s"
            )
        step = f", after a step of {self.step_s:.1f} s" if self.step_s else ""
        says = "fits" if self.fits else "does not fit"
        left = "" if self.fits or not self.every_s else f"; at most {self.every_s} s are lost"
        return (
            f"notice: a save of {self.job} ({size}) takes {self.seconds:,.1f} s{step}, which "
            f"{says} into {self.notice_s} s{left}; {self.source}"
        )

    @property
    def refusal(self) -> str | None:
        """Why the job must not run like this; None where it may."""
        if self.fits is not False or self.every_s:
            return None
        return (
            f"{self.job}: {str(self).removeprefix('notice: ')}: what was trained since the last "
            "checkpoint would be lost with a node. Set train.checkpoint.every_s in the recipe, "
            "such as 300, to lose no more than that; or use more or on-demand nodes, or LoRA"
        )


def saving(
    spec: StackSpec,
    job: JobSpec,
    plan: Plan,
    recipe: Mapping[str, object],
    records: Sequence[RunRecord],
) -> Saving | None:
    """What the job has to save when it is told; None on nodes that are not taken."""
    workers = workers_of(spec, job.partition)
    if not any(each.billing is Billing.PREEMPTIBLE for each in workers):
        return None
    per_weight = BYTES_PER_WEIGHT
    if job.least_nodes is not None and job.least_nodes < job.nodes:
        per_weight += ELASTIC_BYTES_PER_WEIGHT
    num_bytes = per_weight * trained_weights(plan.shape, plan.training)
    newest = newest_first(records)
    same = [each for each in newest if any(same_run(each, job, worker) for worker in workers)]
    measured = next((each for each in same if each.metrics.get(SAVE_METRIC)), None)
    step_s = next((each.metrics[STEP_METRIC] for each in same if STEP_METRIC in each.metrics), None)
    rate = _rate(spec, newest)
    seconds, source = None, ""
    if measured is not None:
        seconds = measured.metrics[SAVE_METRIC]
        source = f"measured by job {measured.job_id} on {measured.finished_at.date()}"
    elif rate is not None:
        gb_per_s, said_by, day = rate
        seconds = Decimal(num_bytes) / BYTES_PER_GB / gb_per_s
        when = "" if day is None else f" on {day}"
        source = f"at {gb_per_s:.2f} GB/s, {said_by}{when}"
    return Saving(
        job=job.name,
        num_bytes=num_bytes,
        notice_s=job.save_s,
        seconds=seconds,
        step_s=step_s or Decimal(0),
        source=source,
        every_s=_every_s(recipe),
    )


def _rate(spec: StackSpec, newest: Sequence[RunRecord]) -> tuple[Decimal, str, date | None] | None:
    """GB/s into the place of checkpoints, who says so, and the day of a measurement."""
    for record in newest:
        found = record.metrics.get(WRITE_METRIC)
        if found and record.stack == spec.name and record.outcome is Outcome.PASS:
            return found, f"measured by acceptance job {record.job_id}", record.finished_at.date()
    declared = None if spec.preemption is None else spec.preemption.save_gb_per_s
    return None if not declared else (declared, "declared in preemption.save_gb_per_s", None)


def _every_s(recipe: Mapping[str, object]) -> int:
    """The recipe's own; what is wrong in it is refused by the workload's reader."""
    values: object = recipe
    for key in ("train", "checkpoint", "every_s"):
        values = values.get(key) if is_map(values) else None
    return values if isinstance(values, int) else 0
