"""What a recipe says of memory: recipe_run(mapping) -> model, Training, steps.

Only the keys that decide memory are read, with the trainer's defaults; the trainer itself checks
all of them. Every problem is told at once, under its path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, TypeGuard

from cost.size.errors import SizeError
from cost.size.shape import LINEAR_MODULES
from cost.size.training import Dtype, Method, Training

_ALL_LINEAR: Final = ("all-linear",)
_DEFAULTS: Final = {field.name: field.default for field in fields(Training)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeRun:
    """The training of one recipe."""

    model: str
    training: Training
    max_steps: int | None
    """Train steps where the recipe sets them; None: it counts epochs."""


def recipe_run(recipe: Mapping[str, object], *, at: str) -> RecipeRun:
    """What a recipe with a section `train` trains; `at` starts the path in every message."""
    problems: list[str] = []
    model = recipe.get("model")
    if not isinstance(model, str):
        problems.append(f"{at}.model: got {model!r}, expected the name of a model")
    train = _section(recipe, "train", at, problems)
    lora = _section({"lora": {}, **train}, "lora", f"{at}.train", problems)
    method = _one_of(train, "method", [*Method], f"{at}.train", problems)
    dtype = _one_of(train, "dtype", [*Dtype], f"{at}.train", problems)
    dropout = lora.get("dropout", 0.0)
    if not isinstance(dropout, int | float) or isinstance(dropout, bool):
        problems.append(f"{at}.train.lora.dropout: got {dropout!r}, expected a number")
        dropout = 0.0
    rank = _whole(lora, "rank", f"{at}.train.lora", problems)
    row_names = ("sequence_length", "micro_batch_size", "gradient_accumulation")
    rows = {name: _whole(train, name, f"{at}.train", problems) for name in row_names}
    targets = _targets(lora, f"{at}.train.lora", problems)
    max_steps = train.get("max_steps")
    if max_steps is not None and (not isinstance(max_steps, int) or isinstance(max_steps, bool)):
        problems.append(f"{at}.train.max_steps: got {max_steps!r}, expected a whole number")
        max_steps = None
    chunk = (
        _whole(train, "loss_chunk_tokens", f"{at}.train", problems)
        if train.get("loss_chunk_tokens") is not None
        else None
    )
    if problems:
        raise SizeError("\n".join(problems))
    return RecipeRun(
        model=str(model),
        training=Training(
            method=Method(method),
            dtype=Dtype(dtype),
            rank=rank,
            dropout=float(dropout),
            targets=targets,
            gradient_checkpointing=train.get("gradient_checkpointing") is True,
            logits_chunk_tokens=chunk,
            **rows,
        ),
        max_steps=max_steps,
    )


def _section(
    values: Mapping[str, object], key: str, at: str, problems: list[str]
) -> Mapping[str, object]:
    value = values.get(key)
    if _is_map(value):
        return value
    problems.append(f"{at}.{key}: got {value!r}, expected a mapping; only such a run has a plan")
    return {}


def _one_of(
    values: Mapping[str, object],
    key: str,
    allowed: list[Method] | list[Dtype],
    at: str,
    problems: list[str],
) -> str:
    default = str(_DEFAULTS[key])
    value = values.get(key, default)
    if value in [each.value for each in allowed]:
        return str(value)
    problems.append(f"{at}.{key}: got {value!r}, expected one of {', '.join(allowed)}")
    return default


def _whole(values: Mapping[str, object], key: str, at: str, problems: list[str]) -> int:
    value = values[key] if key in values else _DEFAULTS[key]
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    problems.append(f"{at}.{key}: got {value!r}, expected a whole number of 1 or more")
    return 1


def _targets(values: Mapping[str, object], at: str, problems: list[str]) -> tuple[str, ...]:
    value = values.get("target_modules", [*_ALL_LINEAR])
    if not _is_list(value) or not all(isinstance(name, str) for name in value):
        problems.append(f"{at}.target_modules: got {value!r}, expected a list of names")
        return LINEAR_MODULES
    names = tuple(str(name) for name in value)
    return LINEAR_MODULES if names == _ALL_LINEAR else names


def _is_map(value: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(value, Mapping)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)
