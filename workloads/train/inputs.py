"""The job `train` up to its first step: it reads and refuses; finish.py builds, trains and writes.

What can be refused is refused first: paths, rows, the plan that was shipped and the packages of
this node come before a rank takes a GPU. A script runs `python -m workloads.train.inputs --recipe
NAME` on the first node of its job, which prints what it found; with that in SOPERATOR_INPUTS the
same line, on each node, compares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from types import FrameType
from typing import Any

from workloads.common import atomic, hardware
from workloads.common.dist import World, environment_rank, world
from workloads.common.exit_codes import (
    ConfigError,
    DataError,
    ExitCode,
    PreemptedError,
    WorkloadError,
    exit_code_of,
    reason_of,
)
from workloads.common.log import log
from workloads.common.places import PREPARED, Places, content_hash, discard, stage
from workloads.common.record import RunRecord, job_id
from workloads.data.manifest import files_of, sha256
from workloads.job import Job, argument_parser, section
from workloads.recipes import load_recipe
from workloads.recipes.reader import parse, require
from workloads.recipes.train import RESUMABLE, STRATEGIES, TrainConfig
from workloads.train.tasks import GENERATED, Task, is_generated, open_task

INPUTS_VARIABLE = "SOPERATOR_INPUTS"


def find_inputs(model: str, config: TrainConfig, places: Places) -> tuple[Path | None, Path | None]:
    """Return the folders of model and data set; None for what is made here."""
    model_dir = None if is_generated(model) else places.model_dir(model)
    dataset = None if config.dataset == GENERATED else places.data_path(config.dataset)
    return model_dir, dataset


def identity(path: Path) -> str:
    """Return a hash that is the same on every node that sees the same files below `path`."""
    return content_hash(files_of(path), path)


def refuse_others(expected: Mapping[str, str]) -> None:
    """Raise DataError for every path that is not here what it is on the first node."""
    node = os.uname().nodename
    wrong: list[str] = []
    for name, digest in expected.items():
        path = Path(name)
        try:
            if not path.exists():
                wrong.append(f"{path} is not on {node}")
            elif identity(path) != digest:
                wrong.append(f"{path} on {node} has other files than on the first node")
        except OSError as error:
            wrong.append(f"{error.filename or path} on {node} cannot be read: {error.strerror}")
    if wrong:
        raise DataError(
            f"{'; '.join(wrong)}; every node must read the same model and data: bring them to a "
            "place on a shared filesystem (storage.places)"
        )


def refuse_other_rows(here: World, digest: str) -> None:
    """Raise DataError on every rank where one of them reads other rows than rank 0."""
    first, *others = here.gather((os.uname().nodename, digest))
    wrong = [f"{rank} ({node})" for rank, (node, rows) in enumerate(others, 1) if rows != first[1]]
    if wrong:
        raise DataError(
            f"ranks {', '.join(wrong)} read other rows than rank 0 ({first[0]}); every node must "
            "read the same data: bring it to a place on a shared filesystem (storage.places)"
        )


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print what a recipe reads, or hold what SOPERATOR_INPUTS says against this node.

    What is refused ends the job before a rank starts, so the run record is written here.
    """
    options = argument_parser("train").parse_args(arguments)
    record = RunRecord(kind="train", recipe=options.recipe)
    try:
        expected = os.environ.get(INPUTS_VARIABLE)
        if expected:
            refuse_others(json.loads(expected))
            return ExitCode.OK
        recipe = load_recipe(options.recipe, options.overrides)
        config = section(recipe, TrainConfig)
        found = [path for path in find_inputs(recipe.model, config, Places()) if path]
        print(json.dumps({str(path): identity(path) for path in found}))
    except (OSError, WorkloadError) as error:
        code = ExitCode.BAD_DATA if isinstance(error, OSError) else exit_code_of(error)
        record.outcome, record.exit_code, record.reason = "FAIL", code, reason_of(error)
        log(f"{code.name} (exit {int(code)}): {record.reason}", every_rank=True)
        if Places().has("results"):
            results = Places().path("results")
            results_dir = atomic.own_folder(results / job_id(), below=results)
            record.finish(results_dir, is_main=False, to=sys.stderr)  # the script reads stdout
        return code
    return ExitCode.OK


PLAN_VARIABLE = "SOPERATOR_PLAN"
PLAN_FILE = "plan.json"
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner expects of this job, and the settings of `train` that it was made for."""

    path: Path
    recipe_model: str
    """Model as the recipe names it."""
    parameters: int
    """Weights of the model without adapters."""
    world_size: int
    strategy: str
    reason: str
    fits: bool
    largest_micro_batch: int
    memory_gib_per_rank: Mapping[str, float]
    """By part, with their sum under `total`."""
    method: str
    dtype: str
    sequence_length: int
    micro_batch_size: int
    gradient_checkpointing: int
    """Layers of the model, the first ones, whose activations are computed again."""
    layers: int
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        total = self.memory_gib_per_rank.get("total")
        wrong = f"memory_gib_per_rank.total: got {total!r}, expected a number"
        require(isinstance(total, int | float), wrong)


def read_plan(environment: Mapping[str, str] | None = None) -> Plan | None:
    """Return the plan that was shipped; None without one, ConfigError for a damaged one.

    Its format is schema_version 2 (cost/size/plan.py writes it). A job typed by hand has none.
    """
    value = (os.environ if environment is None else environment).get(PLAN_VARIABLE)
    if not value:
        return None
    path = Path(value)
    try:
        document: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        log(f"{path}: the plan of this job is gone; going on without one")
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a plan: {error}") from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else None
        raise ConfigError(
            f"{path}.schema_version: got {version!r}, expected {SCHEMA_VERSION}; submit the job "
            "again with the checkout that the cluster has"
        )
    known = {each.name for each in fields(Plan)}
    values = {key: value for key, value in document.items() if key in known}
    return parse(Plan, {**values, "path": path}, at=str(path))


def checked_plan(
    plan: Plan | None, *, model: str, config: TrainConfig, world_size: int
) -> Plan | None:
    """Return the plan when it is of this run; ConfigError when it is of another model."""
    if plan is None:
        return None
    if plan.recipe_model != model:
        raise ConfigError(
            f"{plan.path}: made for model {plan.recipe_model}, but the recipe trains {model}; "
            f"submit the job again, or unset {PLAN_VARIABLE}"
        )
    differences = [
        f"{key} {getattr(plan, key)} there, {getattr(config, key)} here"
        for key in ("method", "dtype", "sequence_length", "micro_batch_size")
        if getattr(config, key) != getattr(plan, key)
    ]
    asked, planned = config.gradient_checkpointing, plan.gradient_checkpointing
    if asked is not None and (plan.layers if asked is True else int(asked)) != planned:
        differences.append(f"gradient_checkpointing {planned} of {plan.layers} there, {asked} here")
    if plan.world_size != world_size:
        differences.append(f"world size {plan.world_size} there, {world_size} here")
    if differences:
        log(f"warning: plan {plan.path} is of another run and is left aside: {differences}")
        return None
    return plan


def choose_strategy(plan: Plan | None, config: TrainConfig) -> str:
    """Return how this run is spread over ranks, and say where the plan would do otherwise."""
    explicit = None if config.strategy == "auto" else config.strategy
    if plan is None:
        return explicit or STRATEGIES[0]
    if not plan.fits and explicit is None:
        is_all = plan.gradient_checkpointing == plan.layers
        again = "" if is_all else "set train.gradient_checkpointing=true, "
        raise ConfigError(
            f"{plan.path}: this run does not fit: {plan.reason}; lower train.micro_batch_size or "
            f"train.sequence_length, {again}or take larger GPUs; to try all the same, name "
            "train.strategy"
        )
    if not plan.fits:
        log(f"warning: by the plan this run does not fit: {plan.reason}")
    if config.micro_batch_size > plan.largest_micro_batch > 0:
        log(
            f"warning: train.micro_batch_size {config.micro_batch_size} is over the plan's "
            f"largest, {plan.largest_micro_batch}"
        )
    if explicit is not None:
        if explicit != plan.strategy:
            log(
                f"warning: train.strategy {explicit} wins over the plan, which says "
                f"{plan.strategy}: {plan.reason}"
            )
        return explicit
    if plan.strategy not in STRATEGIES:
        log(
            f"warning: the plan says {plan.strategy}, which this trainer does not run: going on "
            f"with {STRATEGIES[0]}; {plan.reason}"
        )
        return STRATEGIES[0]
    try:
        replace(config, strategy=plan.strategy)
    except ValueError as error:
        log(f"warning: the plan says {plan.strategy}: {error}; going on with {STRATEGIES[0]}")
        return STRATEGIES[0]
    log(
        f"plan: {plan.strategy}, {plan.memory_gib_per_rank['total']:.2f} GiB a rank expected: "
        f"{plan.reason}"
    )
    return plan.strategy


def check_node(config: TrainConfig, strategy: str) -> None:
    """Raise ConfigError with everything that this node lacks for `config`."""
    import torch

    has_gpu = torch.cuda.is_available()
    problems: list[str] = []
    if config.ddp_backend == "nccl" and not has_gpu and environment_rank()[2] > 1:
        problems.append("train.ddp_backend nccl: there is no GPU; use gloo, or leave it out")
    if config.method == "qlora" and (reason := four_bit_problem(has_gpu=has_gpu)):
        problems.append(f"train.method qlora: {reason}; use method lora")
    if config.attention == "varlen":
        from workloads.train.model import varlen_problem

        if reason := varlen_problem(config, torch.device("cuda" if has_gpu else "cpu")):
            problems.append(f"train.attention varlen: {reason}; use auto")
    if config.liger == "on" and not (has_gpu and find_spec("liger_kernel")):
        missing = "the package liger_kernel is not installed" if has_gpu else "there is no GPU"
        problems.append(f"train.liger on: {missing}; use auto")
    if compiles_layers(config, has_gpu=has_gpu):
        names, language = _compilers(has_gpu=has_gpu)
        if not any(map(which, names)):
            problems.append(
                f"train.compile: there is no {language} compiler on this node; install {names[0]}, "
                "or leave it out"
            )
        from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

        # It holds pickles and libraries; by default it is of a name in /tmp that everybody knows.
        kernels = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default_cache_dir())
        with contextlib.suppress(OSError):  # looked at below; made first, so that nobody else does
            cache_dir()
        if whose := atomic.foreign(kernels) or (not kernels.is_dir() and "is no folder"):
            problems.append(f"{kernels}: {whose}; or name another in TORCHINDUCTOR_CACHE_DIR")
    if strategy == "offload" and not has_gpu:
        problems.append("train.strategy offload: there is no GPU to offload from; use fsdp or ddp")
    if problems:
        raise ConfigError("; ".join(problems))


def compiles_layers(config: TrainConfig, *, has_gpu: bool) -> bool:
    """Return whether this run compiles its layers."""
    if config.compile is None and config.task == "causal_lm":
        return has_gpu and any(map(which, _compilers(has_gpu=True)[0]))
    return config.compile is True


def _compilers(*, has_gpu: bool) -> tuple[tuple[str, str], str]:
    """Return programs of which inductor needs one, and their language."""
    # Triton builds its launchers with a C compiler; on a CPU inductor's own code is C++.
    return (("gcc", "clang"), "C") if has_gpu else (("g++", "clang++"), "C++")


def four_bit_problem(*, has_gpu: bool) -> str | None:
    """Return why 4-bit weights cannot be trained on here; None when they can."""
    if find_spec("bitsandbytes") is None:
        return "the package bitsandbytes is not installed"
    if has_gpu:
        return None
    import torch

    try:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        values = torch.linspace(-1, 1, 64)
        packed, state = quantize_4bit(values, quant_type="nf4")
        error = (dequantize_4bit(packed, state) - values).abs().max()
    except Exception as error:
        return f"bitsandbytes has no 4-bit kernels for this CPU ({error})"
    return None if float(error) < 0.2 else "bitsandbytes gives wrong 4-bit values on this CPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: its recipe, rows, plan and the strategy that follows."""

    job: Job
    config: TrainConfig
    task: Task
    model_dir: Path | None
    """None for a model that is made here."""
    strategy: str
    plan: Plan | None

    @property
    def keeps_gathered(self) -> bool:
        """Whether layers that FSDP2 gathered stay for the backward pass, as their plan has it."""
        plan = self.plan
        return (
            plan is not None and plan.strategy == self.strategy and not plan.reshard_after_forward
        )


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
        model_dir, dataset = find_inputs(model, config, places)
        places.path(config.keep_in)
        rank, _, world_size = environment_rank()
        read = read_plan()
        plan = checked_plan(read, model=model, config=config, world_size=world_size)
        if config.gradient_checkpointing is None:
            again = 0 if plan is None else plan.gradient_checkpointing
            log(f"train.gradient_checkpointing: {again}, {'by the' if plan else 'without a'} plan")
            config = replace(config, gradient_checkpointing=again)
        strategy = choose_strategy(plan, config)
        check_node(config, strategy)
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
                job.keep("plan", PLAN_FILE, plan.path.read_text(encoding="utf-8"))
            if dataset and task.data_file:  # so that it can be run again with the same
                job.record.artifacts["data_file"] = str(dataset / task.data_file.name)
                job.record.data_hash = sha256(task.data_file)
        run = Run(
            job=job, config=config, task=task, model_dir=model_dir, strategy=strategy, plan=plan
        )
        timeout_s, backend = config.checkpoint.timeout_s, config.ddp_backend
        with world(cpu_threads=config.cpu_threads, timeout_s=timeout_s, backend=backend) as here:
            qlora = "train.method: lora and " if config.method == "qlora" else ""  # has no fp32
            remedy = f"{qlora}train.dtype: fp32"
            job.record.hardware = hardware.detect_for(config.dtype, remedy=remedy)
            # Ranks with other held-out rows would wait for each other, some in a validation.
            refuse_other_rows(here, task.digest + task.eval_digest)
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


if __name__ == "__main__":
    sys.exit(main())
