"""Rules of hyperparameter searches: each trial is another run of a job that ends."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Final

from stacks.rules import Findings
from stacks.rules.naming import check_unique, name_problem
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec, SearchSpec

TRIALS_MOST: Final = 500
"""The sbatch line names two files a task, and a command of Linux holds 128 KiB (execve(2)); Slurm's
own limit is 1,000 (slurm.conf(5), MaxArraySize), or what `slurm.config_lines` makes of it."""
_ARRAY_SIZE: Final = re.compile(r"(?ai)\s*MaxArraySize\s*=\s*(\d+)")
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_METRIC: Final = re.compile(r"[a-z][a-z0-9_]*")


def check_searches(spec: StackSpec, findings: Findings) -> None:
    """Names, jobs, settings and numbers of the declared searches."""
    jobs = {job.name: job for job in spec.jobs}
    check_unique(spec.searches, "searches", findings, "searches.name-twice", key="name")
    for index, search in enumerate(spec.searches):
        path = f"searches[{index}]"
        problem = name_problem(search.name, longest=63)
        if problem is None and search.name in jobs:
            problem = f"'{search.name}' is a job; submit takes both by name: use another"
        if problem:
            findings.add("searches.name", f"{path}.name", problem)
        if not _METRIC.fullmatch(search.metric):
            findings.add(
                "searches.metric",
                f"{path}.metric",
                f"'{search.metric}' is no metric of a run record, such as 'last_loss'",
            )
        _check_job(search, jobs, path, findings)
        # Counted first: a grid is made of products, and a slip makes millions.
        if _check_count(search, path, findings):
            _check_settings(search, path, findings)
            _check_array(spec, search, findings)


def _check_array(spec: StackSpec, search: SearchSpec, findings: Findings) -> None:
    """Slurm refuses the whole array where a task reaches MaxArraySize; tasks count from 0."""
    given = [
        (index, int(found[1]))
        for index, line in enumerate(spec.slurm.config_lines)
        if (found := _ARRAY_SIZE.match(line)) is not None
    ]
    if not given:
        return
    # Of a name that slurm.conf has twice, Slurm takes the last.
    index, most = given[-1]
    count = len(search.settings)
    if count > most:
        findings.add(
            "searches.array-size",
            f"slurm.config_lines[{index}]",
            f"MaxArraySize={most}: search '{search.name}' is an array of {count} trials; give "
            f"{count} or more, take the line out (Soperator's own is 1024), or declare fewer "
            "trials",
        )


def _check_job(search: SearchSpec, jobs: dict[str, JobSpec], path: str, findings: Findings) -> None:
    job = jobs.get(search.job)
    if job is None:
        findings.add(
            "searches.job", f"{path}.job", f"'{search.job}' is not a job (has: {', '.join(jobs)})"
        )
    elif not job.ends:
        findings.add(
            "searches.job-ends",
            f"{path}.job",
            f"'{search.job}' ({job.module}) is no job that gives a result of its settings; name "
            "one that trains or evaluates",
        )


def _check_count(search: SearchSpec, path: str, findings: Findings) -> bool:
    for index, axis in enumerate(search.grid):
        if not axis.values:
            findings.add(
                "searches.axis-empty",
                f"{path}.grid[{index}].values",
                f"'{axis.key}' has no value, so the grid has no trial; name some, or take it out",
            )
    combined = math.prod(len(axis.values) for axis in search.grid) if search.grid else 0
    count = combined + len(search.trials)
    if 2 <= count <= TRIALS_MOST:
        return True
    findings.add(
        "searches.count",
        path,
        f"{count:,} trials by grid and trials; give 2 to {TRIALS_MOST}, as one sbatch line holds",
    )
    return False


def _check_settings(search: SearchSpec, path: str, findings: Findings) -> None:
    check_unique(
        search.grid,
        f"{path}.grid",
        findings,
        "searches.axis-twice",
        key="key",
        advice="give all of its values at once",
    )
    wrong: list[str] = []
    for index, axis in enumerate(search.grid):
        if not _KEY.fullmatch(axis.key):
            findings.add(
                "searches.key",
                f"{path}.grid[{index}].key",
                f"'{axis.key}' is no setting such as 'train.learning_rate'",
            )
            wrong.append(axis.key)
    for index, trial in enumerate(search.trials):
        for setting in trial.settings:
            key, equals, _ = setting.partition("=")
            if not equals or not _KEY.fullmatch(key):
                findings.add(
                    "searches.key",
                    f"{path}.trials[{index}].settings",
                    f"'{setting}' is not key=value, such as 'train.learning_rate=2e-5'",
                )
                wrong.append(setting)
    if wrong:
        return
    counts = Counter(tuple(sorted(each)) for each in search.settings)
    for settings, number in counts.items():
        if number > 1:
            findings.add(
                "searches.trial-twice",
                path,
                f"{' '.join(settings) or 'no setting'} is {number} trials; each must be another "
                "run: list it once",
            )
