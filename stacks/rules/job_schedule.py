"""Rules of scheduled jobs: `jobs[].schedule`, which Slurm's scrontab runs."""

from __future__ import annotations

from datetime import timedelta

from stacks.errors import Findings
from stacks.load import StackError
from stacks.schedule import CronError, parse_cron, pipeline, slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec


def check_schedules(spec: StackSpec, findings: Findings) -> None:
    """Every schedule can be read, comes, and leaves its runs the time that they have."""
    scheduled = [index for index, job in enumerate(spec.jobs) if job.schedule is not None]
    for index in scheduled:
        _check_schedule(spec, spec.jobs[index], f"jobs[{index}].schedule", findings)
    if not scheduled:
        return
    for index, line in enumerate(spec.slurm.config_lines):
        if line.lower().startswith("scronparameters"):
            findings.error(
                f"slurm.config_lines[{index}]",
                f"'{line}' is written where a job has a schedule; take it out",
                rule="jobs.schedule-line",
            )


def _check_schedule(spec: StackSpec, job: JobSpec, path: str, findings: Findings) -> None:
    try:
        cron = parse_cron(job.schedule or "")
    except CronError as error:
        findings.error(path, str(error), rule="jobs.schedule")
        return
    if not cron.times_per_month:
        findings.error(
            path,
            f"'{job.schedule}' never comes; look at its day and month",
            rule="jobs.schedule-never",
        )
        return
    gap, longest = cron.shortest_gap, _longest(spec, job)
    if gap is not None and longest is not None and longest > gap:
        findings.warn(
            path,
            f"'{job.schedule}' may come {gap} after the last time, but its time limits allow "
            f"{longest}: while a run is not over, the next one is left out; lower time_limit, or "
            "schedule it less often",
            rule="jobs.schedule-overlap",
        )


def _longest(spec: StackSpec, job: JobSpec) -> timedelta | None:
    """The longest way through what the schedule submits; None where other rules refuse it."""
    if any(name not in {each.name for each in spec.jobs} for name in job.after):
        return None
    ends: dict[str, int] = {}
    try:
        for each in pipeline(spec, job.name):
            before = max((ends[name] for name in each.after if name in ends), default=0)
            ends[each.name] = before + (slurm_seconds(each.time_limit) or 0)
    except StackError:
        return None
    return timedelta(seconds=ends[job.name])
