"""`--plan`: what a run is going to be, from its recipe and the plan that was shipped with it.

Imports no torch and touches no GPU. Dollars are printed where the plan has them and nowhere else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from workloads.common.dist import environment_rank
from workloads.common.exit_codes import ConfigError, ExitCode, WorkloadError, reason_of
from workloads.common.log import log
from workloads.common.model_catalog import find
from workloads.recipes import Recipe, load_recipe
from workloads.train.plan import VARIABLE, Plan, checked_plan, choose_strategy, read_plan

FLAG = "--plan"


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Print the plan of a recipe; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m workloads.train")
    parser.add_argument("--recipe", "--config", dest="recipe", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--resume")
    parser.add_argument(FLAG, action="store_true")
    options = parser.parse_args(arguments)
    try:
        print(describe(load_recipe(options.recipe, options.overrides)))
    except WorkloadError as error:
        log(reason_of(error))
        return error.exit_code
    return ExitCode.OK


def describe(recipe: Recipe) -> str:
    """Return the plan as lines."""
    config = recipe.train
    if config is None:
        raise ConfigError(f"recipe '{recipe.name}' has no section 'train'; name one that has it")
    read = read_plan()
    world_size = read.world_size if read is not None else environment_rank()[2]
    plan = checked_plan(read, model=recipe.model, config=config, world_size=world_size)
    rows = config.micro_batch_size * config.gradient_accumulation * world_size
    dora = " with DoRA" if config.lora.dora else ""
    lines = [
        f"recipe      {recipe.name}: {config.method}{dora} of {recipe.model} in {config.dtype}",
        (
            f"step        {config.micro_batch_size} rows x {config.gradient_accumulation} micro "
            f"batches x {world_size} ranks = {rows} rows of {config.sequence_length} tokens"
        ),
        (
            f"schedule    {config.schedule}, {config.warmup_steps} steps of warm-up, "
            f"learning rate {config.learning_rate:g}"
        ),
    ]
    entry = find(recipe.model)
    described = entry.lines() if entry else ["licence unrecorded: read it before you train on it"]
    lines += [f"model       {line}" for line in described]
    if plan is None:
        length = f"{config.epochs} epochs" if config.max_steps is None else f"{config.max_steps}"
        return "\n".join(
            [
                *lines,
                f"strategy    {choose_strategy(None, config)}",
                f"steps       {length}",
                (
                    f"plan        none: {VARIABLE} is not set; soperator submit ships one, "
                    "soperator size makes one"
                ),
            ]
        )
    return "\n".join([*lines, *_plan_lines(plan, choose_strategy(plan, config))])


def _plan_lines(plan: Plan, strategy: str) -> list[str]:
    document: dict[str, Any] = json.loads(plan.path.read_text(encoding="utf-8"))
    lines = [
        f"strategy    {strategy}: {plan.reason}",
        (
            f"fits        {'yes' if plan.fits else 'no'}; largest micro batch "
            f"{plan.largest_micro_batch}"
        ),
        "memory      GiB a rank",
        *(f"  {part:20} {gib:10.3f}" for part, gib in plan.memory_gib_per_rank.items()),
        f"steps       {document.get('steps') or 'unknown: the stack declares no tokens'}",
    ]
    forecast = document.get("forecast")
    if isinstance(forecast, dict) and forecast.get("known"):
        lines.append(f"hours       {forecast['hours']} ({forecast['speed_source']})")
        usd = forecast.get("nodes_usd")
        lines.append(f"nodes       {'no price' if usd is None else f'${usd}'}")
    else:
        reason = (
            forecast.get("reason") if isinstance(forecast, dict) else "the plan has no forecast"
        )
        lines.append(f"hours       unknown: {reason}")
    return [*lines, f"plan        {plan.path}"]
