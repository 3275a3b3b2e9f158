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
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", "-f", help="Go on until the job ends: the default."),
    ] = True,
    identity: IdentityOption = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Send a terminal the job's control characters too.")
    ] = False,
) -> None:
    """Follow the log of a job to its end; the exit code is the job's."""
    from infra.jobs import logs, slurm
    from infra.jobs.errors import StackPausedError
    from infra.jobs.outcomes import outcome
    from infra.jobs.parse import Job
    from infra.jobs.pull import LOG_NAME
    from infra.jobs.waiting import in_words

    def say(job: Job) -> None:
        where = in_words(job.where) if job.waits else job.where
        output.note(f"job {job.id} {job.name}: {job.state}{f' ({where})' if where else ''}")

    try:
        outputs = context.read(stack)
    except StackPausedError as error:
        path = context.fetched(stack, job_id, error) / LOG_NAME
        with output.ClusterText(sys.stdout, raw=raw) as shown:
            shown.write(path.read_bytes())
        return
    with (
        context.connect(outputs, identity) as connection,
        output.ClusterText(sys.stdout, raw=raw) as shown,
    ):
        job = slurm.find(connection, job_id)
        path = outputs.log_path(job.name, job.id)
        if not follow:
            shown.write(logs.read(connection, path))
            return
        job = logs.follow(
            connection,
            path,
            job.id,
            write=shown.write,
            on_state=say,
            on_lost=lambda error: output.note(error.trying_again),
        )
    output.note(f"job {job.id}: {outcome(job, stack)}")
    raise typer.Exit(job.status)
