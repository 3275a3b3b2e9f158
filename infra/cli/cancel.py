"""`soperator cancel ID...`: ends jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK


def command(
    job_ids: Annotated[list[str], typer.Argument(help="Job ids.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """End jobs, running or waiting, and those that wait for their success."""
    from infra.clients import slurm
    from infra.jobs.follow import waiting_for

    for job_id in job_ids:
        slurm.job_id(job_id)
    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        # scancel is silent about a job that never was, and about one that has ended.
        found = [slurm.find(connection, job_id) for job_id in job_ids]
        over = [job for job in found if job.finished]
        running = [each for each in job_ids if each not in {job.id for job in over}]
        rest = waiting_for(running, slurm.recent(connection, days=1)) if running else ()
        if running:
            slurm.cancel(connection, [*running, *(job.id for job in rest)])
    for job in over:
        output.note(f"{job.name} ({job.id}) has ended already: {job.state}")
    if not running:
        return
    for job in rest:
        output.note(f"{job.name} ({job.id}) waits for its success and is ended with it")
    ended = ", ".join((*running, *(job.id for job in rest)))
    output.note(f"{stack}: asked to end {ended}; see: soperator status -s {stack}")
