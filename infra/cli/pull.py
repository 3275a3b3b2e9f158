"""`soperator pull ID`: results, run record and log of one job, copied here."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption


def command(
    job_id: Annotated[str, typer.Argument(help="Job id.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Bring results, run record and log of a job here; prints the folder."""
    from infra.jobs import pull, slurm

    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        print(pull.pull(connection, outputs, job.name, job.id, state=context.state_root()))
