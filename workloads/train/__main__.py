"""The fine-tuning job, on the ranks that torchrun started; with --plan what it is going to be.

Usage: torchrun --nproc-per-node=2 -m workloads.train --recipe smollm2_135m_lora_2xcpu
       [--set train.max_steps=8] [--resume auto] [--plan]
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from workloads.common.dist import environment_rank
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError, reason_of
from workloads.common.log import log
from workloads.common.models import find
from workloads.common.places import Places
from workloads.job import argument_parser, end, run_job, section
from workloads.recipes import Recipe, load_recipe
from workloads.recipes.train import TrainConfig
from workloads.train import inputs
from workloads.train.tasks import open_task

FLAG = "--plan"

_HARDWARE = re.compile(r"_(\d+)x[a-z][a-z0-9]*$")
"""The end of a recipe's name, such as `_16xh100`: its ranks and what each of them runs on."""


def show_plan(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print the plan of a recipe; return the exit code, that of a refusal where the run has one."""
    parser = argument_parser("train")
    parser.add_argument(FLAG, action="store_true")
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="ranks of the run: nodes x GPUs of each; default: the shipped plan's, else those "
        "started, else the recipe name's",
    )
    options = parser.parse_args(arguments)
    try:
        for line in describe(load_recipe(options.recipe, options.overrides), options.ranks):
            print(line, flush=True)
    except WorkloadError as error:
        log(reason_of(error))
        return error.exit_code
    return ExitCode.OK


def describe(recipe: Recipe, ranks: int | None = None) -> Iterator[str]:
    """Yield the plan's lines; then raise ConfigError where the run itself would be refused."""
    config = section(recipe, TrainConfig)
    read = inputs.read_plan()
    world_size, source = _ranks(recipe, read, ranks)
    plan = inputs.checked_plan(read, model=recipe.model, config=config, world_size=world_size)
    rows = config.micro_batch_size * config.gradient_accumulation * world_size
    dora = " with DoRA" if config.lora.dora else ""
    yield f"recipe      {recipe.name}: {config.method}{dora} of {recipe.model} in {config.dtype}"
    yield f"ranks       {world_size}, {source}"
    yield (
        f"step        {config.micro_batch_size} rows x {config.gradient_accumulation} micro "
        f"batches x {world_size} ranks = {rows} rows of {config.sequence_length} tokens"
    )
    yield (
        f"schedule    {config.schedule}, {config.warmup_steps} steps of warm-up, "
        f"learning rate {config.learning_rate:g}"
    )
    if (held := config.eval) is not None:
        every = f"{held.every} steps" if held.every else f"{held.every_epochs} epochs"
        yield f"validation  every {every} on up to {held.rows} held-out rows"
    if (entry := find(recipe.model)) is None:
        yield "model       licence unrecorded: read it before you train on it"
    else:
        yield "model       {name}: {licence}, {use}; {source}, {read_on}".format_map(entry)
        yield f"model       safeguards: {entry['safeguards']}"
        yield f"model       trainability: {entry['trainability']}"
    if plan is None:
        yield from _lines_without_plan(recipe, config, rows)
        return
    refusal = None
    try:
        strategy = inputs.choose_strategy(plan, config)
    except ConfigError as error:
        strategy, refusal = plan.strategy, error
    document: dict[str, Any] = json.loads(plan.path.read_text(encoding="utf-8"))
    yield f"strategy    {strategy}: {plan.reason}"
    usable = (document.get("hardware") or {}).get("usable_gib_per_rank")
    total = plan.memory_gib_per_rank["total"]
    needs = "" if usable is None else f", {total:.3f} of {usable:.3f} GiB a rank"
    fits = f"{'yes' if plan.fits else 'NO'}{needs}"
    yield f"recomputed  activations of {plan.gradient_checkpointing} of {plan.layers} layers"
    yield f"fits        {fits}; largest micro batch {plan.largest_micro_batch}"
    yield "memory      GiB a rank"
    for part, gib in plan.memory_gib_per_rank.items():
        yield f"  {part:20} {gib:10.3f}"
    steps = document.get("steps")
    forecast = document.get("forecast") or {"reason": "the plan has no forecast"}
    yield f"steps       {_steps(recipe, config, rows) if steps is None else steps}"
    if forecast.get("known"):
        yield f"hours       {forecast['hours']} ({forecast['speed_source']})"
        usd = forecast.get("nodes_usd")
        yield f"nodes       {'no price' if usd is None else f'${usd}'}"
    else:
        yield f"hours       unknown: {forecast.get('reason')}"
    yield f"plan        {plan.path}"
    if refusal is not None:
        yield "refused     this run does not start as it is"
        raise refusal


def _ranks(recipe: Recipe, plan: inputs.Plan | None, asked: int | None) -> tuple[int, str]:
    """Return how many ranks the run has, and by whose word."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"--ranks: got {asked}, expected 1 or more")
        return asked, "by --ranks"
    if plan is not None:
        return plan.world_size, "by the shipped plan"
    if "WORLD_SIZE" in os.environ:
        return environment_rank()[2], "started here"
    named = _HARDWARE.search(recipe.name)
    if named and int(named[1]):
        return int(named[1]), f"by the recipe's name ({named[0][1:]}); --ranks sets another"
    return 1, "as nothing says more; --ranks does"


def _lines_without_plan(recipe: Recipe, config: TrainConfig, rows: int) -> Iterator[str]:
    strategy = inputs.choose_strategy(None, config)
    why = "without a plan" if config.strategy == "auto" else "by train.strategy"
    yield f"strategy    {strategy}: {why}"
    yield f"steps       {_steps(recipe, config, rows)}"
    size = f"soperator cost size {Path(recipe.model).name} --method {config.method}"
    if config.has_adapters:
        size += f" --rank {config.lora.rank}"
    yield (
        f"plan        none, as {inputs.PLAN_VARIABLE} is not set. Memory, hours, dollars and why: "
        "soperator submit JOB --dry-run -s STACK for a job of a stack; memory and presets: "
        f"{size} --seq {config.sequence_length} --batch {config.micro_batch_size}"
    )


def _steps(recipe: Recipe, config: TrainConfig, rows_per_step: int) -> str:
    """Return the train steps as the run counts them; of epochs, where its data lies here."""
    if config.max_steps is not None:
        return f"{config.max_steps} = {config.max_steps * rows_per_step} rows"
    try:
        model_dir, dataset = inputs.find_inputs(recipe.model, config, Places())
        task = open_task(config, model=recipe.model, model_dir=model_dir, dataset=dataset)
    except WorkloadError as error:
        return (
            f"{config.epochs} x rows of {config.dataset} / {rows_per_step}, rounded up; the rows "
            f"cannot be counted here: {reason_of(error)}"
        )
    num_rows = len(task.rows)
    steps = inputs.num_train_steps(config, num_rows=num_rows, rows_per_step=rows_per_step)
    return f"{steps} = {config.epochs} x {num_rows} rows / {rows_per_step}, rounded up"


if __name__ == "__main__":
    if FLAG in sys.argv[1:]:
        end(show_plan())
    end(run_job("train", inputs.train))
