"""`soperator logs ID`: a job's log as it grows; ends with the job, and with its exit status."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption


def command(
    job_id: Annotated[str, typer.Argument(help="Job id that `soperator submit` printed.")],
    stack: StackOption = DEFAULT_STACK,
    follow: Annotated[bool, typer.Option(help="Go on until the job ends.")] = True,
    identity: IdentityOption = None,
) -> None:
    """Follow the log of a job to its end; the exit code is the job's."""
    from infra.jobs import logs, slurm
    from infra.jobs.parse import Job

    def say(job: Job) -> None:
        reason = f" ({job.where})" if job.where else ""
        output.note(f"job {job.id} {job.name}: {job.state}{reason}")

    outputs = context.read(stack)
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        path = outputs.log_path(job.name, job.id)
        if not follow:
            _write(logs.read(connection, path))
            return
        job = logs.follow(connection, path, job.id, write=_write, on_state=say)
    raise typer.Exit(job.status)


def _write(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
