"""The plan that travels with a training job: made here, read by workloads/train/plan.py.

Owns where the file lies on the cluster: `<code_path>/plans/<hash of its bytes>.json`, named to the
job by SOPERATOR_PLAN. Slurm keeps that variable for a requeued job. What a plan says is in
cost/size/plan.py.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from cost.forecast import Forecast, UnknownRun
from cost.size.plan import Plan, make_plan
from infra.jobs.errors import JobsError
from infra.jobs.recipes import recipe_of
from stacks.slurm_spec import TRAIN_MODULE, JobSpec
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
    return make_plan(spec, job, recipe_of(job, files, sets), forecast=forecast)


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


def refuse_unfit(plan: Plan, recipe: Mapping[str, Any]) -> None:
    """Refuses what the trainer refuses on its nodes: a plan that no memory holds.

    A recipe that names its strategy is tried all the same.
    """
    if plan.chosen.fits or recipe.get("train", {}).get("strategy", "auto") != "auto":
        return
    told = plan_lines(plan)[-1].removeprefix("plan: ")
    raise JobsError(f"{told}: {plan.chosen.reason}; nothing was submitted")


def path_on_cluster(code_path: str, content: bytes) -> str:
    """Where the file lies; another plan has another name, so no waiting job loses its own."""
    return f"{code_path}/{FOLDER}/{_name(content)}"


def install_script(code_path: str, contents: Sequence[bytes]) -> str:
    """Shell words that write standard input to these plans' paths, each whole or not at all."""
    folder = shlex.quote(f"{code_path}/{FOLDER}")
    # Short for each plan: a search has hundreds, and all of it is one argument of a shell.
    put = (
        f'put() {{ head -c "$1" > {folder}/"$2".$$ && [ "$(stat -c %s {folder}/"$2".$$)" = "$1" ] '
        f'&& mv -f {folder}/"$2".$$ {folder}/"$2" || {{ rm -f {folder}/"$2".$$; return 1; }}; }}'
    )
    each = "".join(f" && put {len(content)} {_name(content)}" for content in contents)
    return f"{put}; mkdir -p {folder}{each}"


def _name(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:16]}.json"
