"""`soperator cancel ID...`: ends jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption


def command(
    job_ids: Annotated[list[str], typer.Argument(help="Job ids.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """End jobs, running or waiting."""
    from infra.jobs import slurm

    for job_id in job_ids:
        slurm.job_id(job_id)
    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        for job_id in job_ids:
            slurm.find(connection, job_id)  # scancel is silent about a job that never was
        slurm.cancel(connection, job_ids)
    output.note(f"{stack}: asked to end {', '.join(job_ids)}; see: soperator status -s {stack}")
