"""Recipes: what a job does, as JSON or YAML files named model_method_hardware.

Owns the shape of a recipe. A relative model, dataset or source is looked up in its place first,
then in what the jail image brings; other paths start with `{place:NAME}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError
from workloads.recipes.accept import AcceptConfig
from workloads.recipes.data import DataConfig
from workloads.recipes.evaluate import EvaluateConfig
from workloads.recipes.load import LoadConfig
from workloads.recipes.reader import apply_overrides, parse, read_mapping
from workloads.recipes.serve import ServeConfig
from workloads.recipes.train import TrainConfig, translate

RECIPES_DIR = Path(__file__).parent
ENDINGS = (".json", ".yaml", ".yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One recipe; a job reads its own section and the model."""

    name: str
    model: str
    """Model id such as Qwen/Qwen3-14B, or an absolute folder."""
    description: str = ""
    data: DataConfig | None = None
    train: TrainConfig | None = None
    evaluate: EvaluateConfig | None = None
    serve: ServeConfig | None = None
    load: LoadConfig | None = None
    accept: AcceptConfig | None = None


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes, sorted."""
    return sorted(path.stem for path in RECIPES_DIR.iterdir() if path.suffix in ENDINGS)


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return the shipped recipe `name`, or the one in file `name`, with `--set` overrides."""
    path, mapping = read_recipe(name, overrides)
    mapping.setdefault("name", path.stem)
    if "train" in mapping:
        at = f"{path.stem}.train"
        mapping["train"] = translate(mapping["train"], at=at, folder=path.parent)
    return parse(Recipe, mapping, at=path.stem)


def read_recipe(name: str, overrides: Sequence[str] = ()) -> tuple[Path, dict[str, Any]]:
    """Return the file of a recipe, and what it says with `--set` overrides, not yet checked."""
    path = Path(name)
    if path.suffix not in ENDINGS:
        candidates = [RECIPES_DIR / f"{name}{ending}" for ending in ENDINGS]
        found = [candidate for candidate in candidates if candidate.is_file()]
        if not found:
            raise ConfigError(
                f"recipe '{name}' is not shipped (has: {', '.join(recipe_names())}); "
                "give one of these or the path of a .json or .yaml file"
            )
        path = found[0]
    return path, apply_overrides(read_mapping(path), overrides)


def config_text(recipe: Mapping[str, Any]) -> str:
    """Return the recipe as one JSON file, the same for the same values."""
    return json.dumps(recipe, indent=2, sort_keys=True) + "\n"
