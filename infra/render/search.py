"""The text of a hyperparameter search: spec -> the script of its job as a Slurm array. Pure.

Owns what makes an array of a job: numbers and how many at once, the settings of each task, and
`trial.json` in its results, which says which trial they are of. The job itself is sbatch.py's.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Final

from infra.render.job_nodes import RenderError
from infra.render.sbatch import render_sbatch
from stacks.search_spec import SearchSpec
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

TRIAL_FILE: Final = "trial.json"
PER_TRIAL: Final = ("SOPERATOR_PLAN", "SOPERATOR_RUN_CONFIG")
"""Variables that a submission gives each task for itself, as NAME_<number of the task>."""
_DIRECTIVE: Final = "#SBATCH "
_BEGIN: Final = "set -euo pipefail"


def search_job(spec: StackSpec, search: SearchSpec) -> JobSpec:
    """The job that each task runs, under the name of the search."""
    for job in spec.jobs:
        if job.name == search.job:
            return replace(job, name=search.name, after=())
    have = ", ".join(job.name for job in spec.jobs)
    raise RenderError(
        f"{spec.name}: searches.{search.name}.job: {search.job!r} is not a job (has: {have})"
    )


def render_search(spec: StackSpec, search: SearchSpec) -> str:
    """The sbatch script of the search; the settings of a task follow those of the sbatch line."""
    lines = render_sbatch(spec, search_job(spec, search)).splitlines()
    last = max(index for index, line in enumerate(lines) if line.startswith(_DIRECTIVE))
    lines.insert(last + 1, f"{_DIRECTIVE}--array={array_option(search)}")
    begin = lines.index(_BEGIN)
    lines[begin + 1 : begin + 1] = _trials(spec, search)
    return "\n".join(lines) + "\n"


def array_option(search: SearchSpec, numbers: tuple[int, ...] | None = None) -> str:
    """What `--array` takes: these tasks, or all, so many at once."""
    wanted = f"0-{len(search.settings) - 1}"
    if numbers is not None:
        wanted = ",".join(str(number) for number in numbers)
    return f"{wanted}%{search.at_once}"


def _trials(spec: StackSpec, search: SearchSpec) -> list[str]:
    results = spec.storage.places.get("results")
    if results is None:
        raise RenderError(f"{spec.name}: storage.places.results: missing; trials are told there")
    trial = f'{{"search": "{search.name}", "array": "%s", "trial": %s, "settings": %s}}\\n'
    return [
        "",
        f"# A trial of search {search.name}: its settings win over those of the command line.",
        "case $SLURM_ARRAY_TASK_ID in",
        *(f"  {number}) {_trial(each)} ;;" for number, each in enumerate(search.settings)),
        f'  *) echo "soperator: {search.name} has no trial $SLURM_ARRAY_TASK_ID" >&2; exit 2 ;;',
        "esac",
        f"for name in {' '.join(PER_TRIAL)}; do",
        "  own=${name}_$SLURM_ARRAY_TASK_ID",
        '  [[ -z ${!own:-} ]] || export "$name=${!own}"',
        "done",
        f"trial={shlex.quote(results)}/$SLURM_JOB_ID",
        'mkdir -p "$trial"',
        (
            f'printf {shlex.quote(trial)} "$SLURM_ARRAY_JOB_ID" "$SLURM_ARRAY_TASK_ID" '
            f'"$settings" > "$trial/{TRIAL_FILE}"'
        ),
    ]


def _trial(settings: tuple[str, ...]) -> str:
    words = shlex.join([word for each in settings for word in ("--set", each)])
    return f'settings={shlex.quote(json.dumps(settings))}; set -- "$@" {words}'
