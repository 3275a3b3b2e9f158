"""`soperator status [ID]`: what runs, waits and ran on a cluster, why, and until when."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.output import Format


def command(
    job_id: Annotated[str | None, typer.Argument(help="Job id; every job without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    days: Annotated[int, typer.Option(min=1, help="How far back to look.")] = 7,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """List the jobs of a cluster, or show one."""
    from infra.jobs import expectation, slurm
    from infra.jobs.outcomes import outcome
    from infra.jobs.waiting import in_words

    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        if job_id is None:
            jobs = slurm.recent(connection, days=days)
        else:
            jobs = (slurm.find(connection, job_id),)
    hours = expectation.forecast_hours(context.state_root(), stack, outputs.login_host_key)
    ends = {job.id: expectation.expected(job, hours.get(job.id)) for job in jobs}
    if format is Format.JSON:
        output.print_json(
            [
                {
                    **asdict(job),
                    "reason": in_words(job.where) if job.waits else None,
                    "expected": ends[job.id],
                    "outcome": (end := outcome(job, stack)) and asdict(end),
                }
                for job in jobs
            ]
        )
        return
    if not jobs:
        output.note(f"{stack}: no jobs in {days} days; start one of: {', '.join(outputs.jobs)}")
        return
    output.print_table(
        ("ID", "JOB", "STATE", "EXIT", "TIME", "STARTED", "WHERE", "EXPECTED"),
        [
            (
                job.id,
                job.name,
                job.state,
                job.exit_code,
                job.elapsed,
                None if job.waits else job.started,
                in_words(job.where) if job.waits else job.where,
                ends[job.id],
            )
            for job in jobs
        ],
    )
    if job_id is not None and (end := outcome(jobs[0], stack)) is not None:
        output.note(str(end))
