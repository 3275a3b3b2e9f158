"""`soperator status [ID]`: what runs, waits and ran on a cluster."""

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
    from infra.jobs import slurm

    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        if job_id is None:
            jobs = slurm.recent(connection, days=days)
        else:
            jobs = (slurm.find(connection, job_id),)
    if format is Format.JSON:
        output.print_json([asdict(job) for job in jobs])
        return
    if not jobs:
        output.note(f"{stack}: no jobs in {days} days; start one of: {', '.join(outputs.jobs)}")
        return
    output.print_table(
        ("ID", "JOB", "STATE", "EXIT", "TIME", "STARTED", "WHERE"),
        [
            (job.id, job.name, job.state, job.exit_code, job.elapsed, job.started, job.where)
            for job in jobs
        ],
    )
