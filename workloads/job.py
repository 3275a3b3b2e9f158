"""The frame of every job: command line, run record, exit code.

Usage in a `__main__.py`: `end(run_job("train", main))`, where `main(job)` does the work and raises
when it cannot.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn, TypeVar

from workloads.common import atomic, hardware
from workloads.common.dist import environment_rank
from workloads.common.exit_codes import (
    ConfigError,
    ExitCode,
    WorkloadError,
    exit_code_of,
    full_text,
    reason_of,
)
from workloads.common.log import TRAIN_QUIET_S, log, never_silent
from workloads.common.places import Places
from workloads.common.record import RunRecord, job_id
from workloads.recipes import Recipe, config_text, load_recipe, read_recipe

T = TypeVar("T")
STORED_RECIPE = "SOPERATOR_RUN_CONFIG"
"""Variable with bucket/key of the recipe as the submission stored it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What `main` of a job gets."""

    recipe: Recipe
    places: Places
    record: RunRecord
    results_dir: Path
    """Folder of this job's results; made."""

    def keep(self, artifact: str, name: str, text: str) -> None:
        """Write a file of results; the record names it `artifact`."""
        atomic.write_text(self.results_dir / name, text)
        self.record.artifacts[artifact] = str(self.results_dir / name)

    def fail(self, error: WorkloadError) -> NoReturn:
        """End this rank from another thread, with its record: the main one cannot be reached."""
        code = _fail(self.record, error, error.exit_code)
        self.record.finish(self.results_dir, is_main=environment_rank()[0] == 0)
        end(code)


def argument_parser(kind: str, *, required: bool = True) -> argparse.ArgumentParser:
    """Return the parser of `--recipe`, `--set` and, of a training, `--resume`."""
    parser = argparse.ArgumentParser(prog=f"python -m workloads.{kind}")
    text = f"name in workloads/recipes, or a file with a section {kind}"
    parser.add_argument("--recipe", "--config", dest="recipe", required=required, help=text)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    if kind == "train":
        parser.add_argument("--resume", help="auto, requeue, never, or a checkpoint folder")
    return parser


def recipe_words(
    options: argparse.Namespace, default: str, sets: Sequence[tuple[str, Any]]
) -> list[str]:
    """Return a command line with flags of its own in recipe form, `--set` of each key and value."""
    own = [f"{key}={json.dumps(value)}" for key, value in sets]
    # What is set by its key comes last: it wins over a flag.
    words = [word for each in [*own, *options.overrides] for word in ("--set", each)]
    return ["--recipe", options.recipe or default, *words]


def run_job(
    kind: str, main: Callable[[Job], None], arguments: Sequence[str] | None = None
) -> ExitCode:
    """Run `main`; write the run record, also for a failure; return the exit code."""
    options = argument_parser({"prepare-data": "data"}.get(kind, kind)).parse_args(arguments)
    # `--resume X` is short for `--set train.resume=X`.
    if getattr(options, "resume", None):
        options.overrides.append(f"train.resume={options.resume}")
    record = RunRecord(kind=kind, recipe=options.recipe)
    results_dir: Path | None = None
    is_main = os.environ.get("RANK", "0") == "0"
    try:
        rank, _, record.world_size = environment_rank()
        is_main = rank == 0
        places = Places()
        results = places.path("results")
        results_dir = atomic.own_folder(results / job_id(), below=results)
        recipe = load_recipe(options.recipe, options.overrides)
        if is_main:
            settings = read_recipe(options.recipe, options.overrides)[1]
            record.artifacts |= _keep_recipe(results_dir, settings)
        record.recipe = recipe.name
        record.model = Path(recipe.model).name
        record.hardware = hardware.detect("cpu")
        quiet_s = TRAIN_QUIET_S if kind == "train" else None
        # A server that nobody asks has nothing to say.
        with nullcontext() if kind == "serve" else never_silent(quiet_s):
            main(Job(recipe=recipe, places=places, record=record, results_dir=results_dir))
        record.outcome, code = "PASS", ExitCode.OK
    except Exception as error:
        code = _fail(record, error, exit_code_of(error))
    try:
        record.finish(results_dir, is_main=is_main)
    except OSError as error:
        log(f"the run record is not written: {error}; its line is printed above")
        code = exit_code_of(error) if code is ExitCode.OK else code
    return code


def _keep_recipe(results_dir: Path, recipe: Mapping[str, Any]) -> dict[str, str]:
    """Write the recipe with every setting beside the record; return the artifacts that it names.

    The bytes are those that the submission stored in the stack's bucket under their hash, so that
    the record can name that object as its own.
    """
    path, text = results_dir / "recipe.json", config_text(recipe)
    atomic.write_text(path, text)
    artifacts = {"recipe": str(path)}
    stored = os.environ.get(STORED_RECIPE)
    if not stored:
        return artifacts
    digest = PurePosixPath(stored).stem
    if digest and hashlib.sha256(text.encode()).hexdigest().startswith(digest):
        artifacts["stored_recipe"] = f"s3://{stored}"
    else:
        log(f"{STORED_RECIPE} {stored} holds other settings than this run has: see {path}")
    return artifacts


def end(code: ExitCode) -> NoReturn:
    """End the process with `code`, past the destructors of C++ libraries.

    A thread of gloo that still runs at interpreter exit makes libstdc++ abort ("terminate called
    without an active exception"): a finished rank would count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code))


def _fail(record: RunRecord, error: Exception, code: ExitCode) -> ExitCode:
    record.outcome = "NOT_RUN" if code is ExitCode.NOT_RUN else "FAIL"
    record.exit_code = code
    record.reason = reason_of(error)
    if not isinstance(error, WorkloadError) and full_text(error) is None:
        traceback.print_exc(file=sys.stderr)
    log(f"{code.name} (exit {int(code)}): {record.reason}", every_rank=True)
    return code


def section(recipe: Recipe, kind: type[T]) -> T:
    """Return the recipe's settings of this kind; one without them is refused."""
    name = next(each.name for each in fields(recipe) if kind.__name__ in str(each.type))
    found = getattr(recipe, name)
    if found is None:
        raise ConfigError(
            f"recipe '{recipe.name}' has no section '{name}'; name one that has it, "
            f"see workloads/recipes"
        )
    return found
