"""Rules of runs, preemption and budget: what a forecast needs in order to be worth printing."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from stacks.errors import Findings
from stacks.rules.naming import check_unique
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing
from stacks.spec.slurm import JobSpec

_SECONDS_PER_HOUR: Final = Decimal(3600)


def check_runs(spec: StackSpec, findings: Findings) -> None:
    """Forecasts name jobs and sources; losses are declared where nodes are preemptible."""
    jobs = {job.name: job for job in spec.jobs}
    check_unique(
        (run.job for run in spec.runs),
        "runs",
        findings,
        key="job",
        rule="runs.job-twice",
        advice="keep one entry",
    )
    for index, run in enumerate(spec.runs):
        path = f"runs[{index}]"
        if run.job not in jobs:
            findings.error(
                f"{path}.job",
                f"'{run.job}' is not a job (has: {', '.join(jobs) or 'none'})",
                rule="runs.job",
            )
        if run.train_tokens_per_s is not None and run.source is None:
            findings.error(
                f"{path}.source",
                "missing: train_tokens_per_s came from somewhere; say where and when",
                rule="runs.source-missing",
            )
        if run.train_tokens_per_s is None and run.source is not None:
            findings.warn(
                f"{path}.source",
                "no effect without train_tokens_per_s; remove it",
                rule="runs.source-unused",
            )
        if run.train_tokens_per_s is not None and run.job in jobs:
            busy_s = run.tokens_per_epoch * run.epochs / run.train_tokens_per_s
            _check_limit(jobs[run.job], busy_s, path, findings)
    _check_preemption(spec, findings)


def _check_limit(job: JobSpec, busy_s: Decimal, path: str, findings: Findings) -> None:
    limit_s = slurm_seconds(job.time_limit)
    if limit_s is not None and busy_s > limit_s:
        findings.warn(
            path,
            f"{job.name} would take {busy_s / _SECONDS_PER_HOUR:.2f} hours at the declared speed, "
            f"but its time_limit is {job.time_limit}; raise it, or Slurm ends the job before it "
            "is done",
            rule="runs.time-limit",
        )


def _check_preemption(spec: StackSpec, findings: Findings) -> None:
    workers = spec.nodes.workers
    preemptible = [worker.name for worker in workers if worker.billing is Billing.PREEMPTIBLE]
    if preemptible and spec.preemption is None:
        findings.warn(
            "preemption",
            f"{', '.join(preemptible)} is preemptible, but no losses are declared: forecasts "
            "count none; add preemption with its rate, checkpoint stall and restart time",
            rule="runs.preemption",
        )
