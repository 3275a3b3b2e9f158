"""The plan that `soperator submit` ships with a job: read, checked, obeyed or contradicted aloud.

SOPERATOR_PLAN names the file; its format is schema_version 1 (cost/size/plan.py writes it). No plan
is no error: a job typed by hand has none. A plan of another model is refused: somebody shipped the
wrong one. One of another number of ranks or other settings is left aside with a word. An explicit
`train.strategy` wins over the plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.train.config import STRATEGIES, TrainConfig

VARIABLE = "SOPERATOR_PLAN"
FILE_NAME = "plan.json"
SCHEMA_VERSION = 1
_SETTINGS = (
    "method",
    "dtype",
    "sequence_length",
    "micro_batch_size",
    "gradient_checkpointing",
)
_KINDS: dict[str, type] = {
    "recipe_model": str,
    "parameters": int,
    "world_size": int,
    "strategy": str,
    "reason": str,
    "fits": bool,
    "largest_micro_batch": int,
    "memory_gib_per_rank": dict,
    **dict.fromkeys(("method", "dtype"), str),
    **dict.fromkeys(("sequence_length", "micro_batch_size"), int),
    "gradient_checkpointing": bool,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the planner expects of this job."""

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
    settings: Mapping[str, Any]
    """Settings of `train` that the plan was made for."""


def read_plan(environment: Mapping[str, str] | None = None) -> Plan | None:
    """Return the plan that was shipped; None without one, ConfigError for a damaged one."""
    value = (os.environ if environment is None else environment).get(VARIABLE)
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
    wrong = [
        f"{path}.{key}: got {document.get(key)!r}, expected {kind.__name__}"
        for key, kind in _KINDS.items()
        if not isinstance(document.get(key), kind)
        or (kind is int and isinstance(document[key], bool))
    ]
    total = (document.get("memory_gib_per_rank") or {}).get("total") if not wrong else 0.0
    if not isinstance(total, int | float):
        wrong.append(f"{path}.memory_gib_per_rank.total: got {total!r}, expected a number")
    if wrong:
        raise ConfigError("; ".join(wrong))
    return Plan(
        path=path,
        settings={key: document[key] for key in _SETTINGS},
        **{key: document[key] for key in _KINDS if key not in _SETTINGS},
    )


def checked_plan(
    plan: Plan | None, *, model: str, config: TrainConfig, world_size: int
) -> Plan | None:
    """Return the plan when it is of this run; ConfigError when it is of another model."""
    if plan is None:
        return None
    if plan.recipe_model != model:
        raise ConfigError(
            f"{plan.path}: made for model {plan.recipe_model}, but the recipe trains {model}; "
            f"submit the job again, or unset {VARIABLE}"
        )
    differences = [
        f"{key} {value} there, {getattr(config, key)} here"
        for key, value in plan.settings.items()
        if value != getattr(config, key)
    ]
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
        raise ConfigError(
            f"{plan.path}: this run does not fit: {plan.reason}; lower train.micro_batch_size or "
            "train.sequence_length, set train.gradient_checkpointing, or take larger GPUs; to try "
            "all the same, name train.strategy"
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
