"""A job's recipe with the settings of stack and command line, as the job itself will read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from stacks.errors import UserError
from stacks.files import is_map
from stacks.load import STACKS_DIR
from stacks.spec.slurm import RECIPE_ENDINGS, JobSpec

_FOLDER: Final = "workloads/recipes"


class RecipeError(UserError):
    """A recipe that is not there or cannot be read, or a setting of no section of it."""


def recipe_of(job: JobSpec, files: Mapping[str, bytes], sets: Sequence[str] = ()) -> dict[str, Any]:
    """The recipe that the job will run; its file is among `files`, path -> content."""
    return with_settings(_read(job, files), [*declared_settings(job), *sets])


def max_steps(job: JobSpec, sets: Sequence[str] = ()) -> int | None:
    """Train steps that bound the run, by this checkout's recipe; None: it counts epochs.

    None too where the recipe cannot be read or its number is wrong: the job itself refuses that.
    """
    paths = (STACKS_DIR.parent / _FOLDER / f"{job.recipe}{ending}" for ending in RECIPE_ENDINGS)
    files = {f"{_FOLDER}/{path.name}": path.read_bytes() for path in paths if path.is_file()}
    try:
        train = recipe_of(job, files, sets).get("train")
    except RecipeError:
        return None
    steps = train.get("max_steps") if is_map(train) else None
    return steps if type(steps) is int and steps > 0 else None


def with_settings(recipe: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """The recipe with `a.b=c` settings, read as the workload reads them: JSON, else text."""
    result: dict[str, Any] = json.loads(json.dumps(recipe))
    for setting in sets:
        key, _, text = setting.partition("=")
        *parents, last = key.split(".")
        node = result
        for parent in parents:
            if not isinstance(node.setdefault(parent, {}), dict):
                raise RecipeError(f"--set {setting}: {parent!r} is no section of the recipe")
            node = node[parent]
        try:
            node[last] = json.loads(text)
        except ValueError:
            node[last] = text
    return result


def declared_settings(job: JobSpec) -> Iterator[str]:
    """Settings among the arguments that the stack gives the job."""
    words = iter(job.args)
    for word in words:
        flag, equals, text = word.partition("=")
        if flag not in ("--set", "--resume"):
            continue
        if not equals:
            text = next(words, None)
        if text is not None:  # else the job itself says that its last argument lacks a value
            yield text if flag == "--set" else f"train.resume={text}"


def _read(job: JobSpec, files: Mapping[str, bytes]) -> Mapping[str, Any]:
    for ending in RECIPE_ENDINGS:
        path = f"{_FOLDER}/{job.recipe}{ending}"
        if path not in files:
            continue
        try:
            # JSON is YAML, but YAML reads 2e-5 as text.
            read = json.loads if ending == ".json" else yaml.safe_load
            recipe: object = read(files[path])
        except (ValueError, yaml.YAMLError) as error:
            raise RecipeError(f"{path}: cannot be read: {error}") from error
        if not is_map(recipe):
            raise RecipeError(f"{path}: got {type(recipe).__name__}, expected a mapping")
        return recipe
    raise RecipeError(f"jobs.{job.name}.recipe: no file of {job.recipe!r} in workloads/recipes")
