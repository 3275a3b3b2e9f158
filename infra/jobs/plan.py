"""The plan that travels with a training job: made here, read by workloads/train/plan.py.

Owns which recipe and settings a submission has, and where the file lies on the cluster:
`<code_path>/plans/<hash of its bytes>.json`, named to the job by SOPERATOR_PLAN. Slurm keeps that
variable for a requeued job. What a plan says is in cost/size/plan.py.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from cost.forecast import Forecast, UnknownRun
from cost.size.errors import SizeError
from cost.size.plan import TRAIN_MODULE, Plan, make_plan
from infra.render.archive import RECIPE_ENDINGS
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

VARIABLE = "SOPERATOR_PLAN"
FOLDER = "plans"


def plan_of(
    spec: StackSpec,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    forecast: Forecast | UnknownRun | None = None,
) -> Plan | None:
    """The plan of a job; its recipe is among `files`, path -> content. None: it does not train."""
    if job.module != TRAIN_MODULE:
        return None
    recipe = with_settings(_recipe(job, files), [*_declared_settings(job), *sets])
    return make_plan(spec, job, recipe, forecast=forecast)


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """What a person reads of the plan at a submission."""
    chosen = plan.chosen
    most = f"at most {chosen.largest_micro_batch} rows a micro batch"
    lines = [f"plan: {chosen.sharding.label} of {plan.shape.name}: {chosen.reason}; {most}"]
    if not chosen.fits:
        lines.append(
            f"plan: {plan.job} does not fit by this plan; lower train.micro_batch_size or "
            f"train.sequence_length, or see: soperator size {plan.shape.name} "
            f"--method {plan.training.method} --seq {plan.training.sequence_length}"
        )
    return tuple(lines)


def path_on_cluster(code_path: str, content: bytes) -> str:
    """Where the file lies; another plan has another name, so no waiting job loses its own."""
    return f"{code_path}/{FOLDER}/{hashlib.sha256(content).hexdigest()[:16]}.json"


def install_script(path: str) -> str:
    """Shell words that write standard input to `path`, whole or not at all."""
    folder, target = shlex.quote(str(PurePosixPath(path).parent)), shlex.quote(path)
    return f"mkdir -p {folder} && cat > {target}.$$ && mv -f {target}.$$ {target}"


def with_settings(recipe: Mapping[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """The recipe with `a.b=c` settings, read as the workload reads them: JSON, else text."""
    result: dict[str, Any] = json.loads(json.dumps(recipe))
    for setting in sets:
        key, _, text = setting.partition("=")
        *parents, last = key.split(".")
        node: Any = result
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise SizeError(f"--set {setting}: {parent!r} is no section of the recipe")
        try:
            node[last] = json.loads(text)
        except ValueError:
            node[last] = text
    return result


def _declared_settings(job: JobSpec) -> Iterator[str]:
    """Values of `--set` among the arguments that the stack gives the job."""
    for word, after in zip(job.args, job.args[1:], strict=False):
        if word == "--set":
            yield after


def _recipe(job: JobSpec, files: Mapping[str, bytes]) -> Mapping[str, Any]:
    for ending in RECIPE_ENDINGS:
        path = f"workloads/recipes/{job.recipe}{ending}"
        if path not in files:
            continue
        try:
            recipe = yaml.safe_load(files[path])  # JSON is YAML
        except yaml.YAMLError as error:
            raise SizeError(f"{path}: cannot be read: {error}") from error
        if not isinstance(recipe, dict):
            raise SizeError(f"{path}: got {type(recipe).__name__}, expected a mapping")
        return recipe
    raise SizeError(f"jobs.{job.name}.recipe: no file of {job.recipe!r} in workloads/recipes")
