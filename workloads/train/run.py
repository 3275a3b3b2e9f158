"""The job `train` up to its first step: it reads and refuses; finish.py builds, trains and writes.

What can be refused is refused first: paths, rows, the plan and the packages of this node come
before a rank takes a GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import FrameType

from workloads.common import hardware
from workloads.common.dist import environment_rank, world
from workloads.common.exit_codes import ConfigError, DataError, PreemptedError
from workloads.common.log import log
from workloads.common.places import PREPARED, discard, stage
from workloads.data.manifest import sha256
from workloads.job import Job, section
from workloads.recipes.train import RESUMABLE, TrainConfig
from workloads.train import inputs
from workloads.train.tasks import Task, open_task


class StopRequest:
    """True once SIGTERM or SIGUSR1 came within it; the former handlers come back at its end."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._is_deferred = False

    def __enter__(self) -> StopRequest:
        numbers = (signal.SIGTERM, signal.SIGUSR1)
        self._former = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return self.signal_name is not None

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a signal is only noted: who asks for the flag saves and ends the run."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Only the first one raises: a second must not end what writes the record of the first. Code
        # that swallows the error leaves the flag, and the loop stops after its first step.
        is_first, self.signal_name = self.signal_name is None, signal.Signals(number).name
        if is_first and not self._is_deferred:
            raise PreemptedError(
                f"stopped by {self.signal_name} outside the train steps: nothing new to save; run "
                "the job again with --resume auto to continue"
            )


def train(job: Job) -> None:
    """Train, write the final weights and point `latest` at them."""
    # From here on a signal has its code and record: reading data and weights can take minutes.
    with StopRequest() as stop:
        config = section(job.recipe, TrainConfig)
        if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
            # Rows change their length: blocks that grow leave no holes between them.
            os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        # Paths first: a missing one is told before torch is imported and a GPU is taken.
        model, places = job.recipe.model, job.places
        model_dir, dataset = inputs.find_inputs(model, config, places)
        places.path(config.keep_in)
        rank, _, world_size = environment_rank()
        read = inputs.read_plan()
        plan = inputs.checked_plan(read, model=model, config=config, world_size=world_size)
        if config.gradient_checkpointing is None:
            again = 0 if plan is None else plan.gradient_checkpointing
            log(f"train.gradient_checkpointing: {again}, {'by the' if plan else 'without a'} plan")
            config = replace(config, gradient_checkpointing=again)
        strategy = inputs.choose_strategy(plan, config)
        inputs.check_node(config, strategy)
        if config.save_original and model_dir is None and strategy != "ddp":
            raise ConfigError(
                f"train.save_original: got true with {model}, which no file holds, under "
                f"{strategy}, which divides it; use strategy ddp"
            )
        task = _open(job, config, model_dir=model_dir, dataset=dataset)
        if rank == 0:
            # The run's settings, and its plan, beside the record: they are pulled with it.
            values = {"recipe": job.recipe.name, "model": model, "train": asdict(config)}
            job.keep("config", "config.json", f"{json.dumps(values, indent=2, default=str)}\n")
            if plan is not None:
                job.keep("plan", inputs.PLAN_FILE, plan.path.read_text(encoding="utf-8"))
            if dataset and task.data_file:  # so that it can be run again with the same
                job.record.artifacts["data_file"] = str(dataset / task.data_file.name)
                job.record.data_hash = sha256(task.data_file)
        run = inputs.Run(
            job=job, config=config, task=task, model_dir=model_dir, strategy=strategy, plan=plan
        )
        timeout_s, backend = config.checkpoint.timeout_s, config.ddp_backend
        with world(cpu_threads=config.cpu_threads, timeout_s=timeout_s, backend=backend) as here:
            qlora = "train.method: lora and " if config.method == "qlora" else ""  # has no fp32
            remedy = f"{qlora}train.dtype: fp32"
            job.record.hardware = hardware.detect_for(config.dtype, remedy=remedy)
            # Ranks with other held-out rows would wait for each other, some in a validation.
            inputs.refuse_other_rows(here, task.digest + task.eval_digest)
            from workloads.train.finish import train_and_finish

            train_and_finish(run, here, stop)


def _open(job: Job, config: TrainConfig, *, model_dir: Path | None, dataset: Path | None) -> Task:
    """Return the task with its rows, read from this node's copy of the data where it has one."""
    here = partial(open_task, config, model=job.recipe.model, model_dir=model_dir)
    if dataset is not None and config.stage == "auto":
        # Ranks of nodes that have their copy wait for the others no longer than timeout_s.
        limit_s = config.checkpoint.timeout_s / 2
        staged = stage(dataset, job.places, PREPARED, limit_s=limit_s)
        log(staged.text, every_rank=environment_rank()[1] == 0 or staged.copy_s > 0)
        if staged.is_staged:
            try:
                task = here(dataset=staged.path)
                job.record.metrics |= staged.metrics
                return task
            except DataError as error:  # what is wrong is said of the file that its user knows
                log(f"{error}; reading {dataset}", every_rank=True)
                discard(staged)
        job.record.metrics["is_staged"] = 0
    return here(dataset=dataset)


def fingerprint(config: TrainConfig, model: str, task: Task) -> str:
    """Return the hash of everything that a resumed run must share with its checkpoint."""
    values = {k: v for k, v in asdict(config).items() if k not in RESUMABLE}
    text = json.dumps([values, model, task.digest], default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def num_train_steps(
    config: TrainConfig, *, num_rows: int, rows_per_step: int, step: int = 0, position: int = 0
) -> int:
    """Return the train steps of the run; what is left of the epochs at the end counts as one."""
    if config.max_steps is not None:
        if step > config.max_steps:
            raise ConfigError(
                f"train.max_steps: got {config.max_steps}, but the checkpoint that the run starts "
                f"from is after step {step}; raise it, name another checkpoint by "
                "--resume, or start anew with --resume never"
            )
        return config.max_steps
    assert config.epochs is not None
    # From the rows that are left: an earlier end, or other ranks, had steps of other lengths.
    left = max(0, config.epochs * num_rows - position)
    return step + -(-left // rows_per_step)
