"""`soperator logs ID`: a job's log as it grows; ends with the job, and with its exit status."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.verdict import NOT_RUN
from infra.state import DEFAULT_STACK

if TYPE_CHECKING:
    from infra.clients.slurm import Job


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
    from infra.clients import slurm
    from infra.clients.errors import StackPausedError
    from infra.jobs import follow as job_log
    from infra.jobs.follow import in_words
    from infra.jobs.transfer import LOG_NAME

    def say(job: Job) -> None:
        where = in_words(job.where) if job.waits else job.where
        output.note(f"job {job.id} {job.name}: {job.state}{f' ({where})' if where else ''}")

    try:
        outputs = context.read(stack)
    except StackPausedError as error:
        folder = context.fetched(stack, job_id, error)
        with output.ClusterText(sys.stdout, raw=raw) as shown:
            shown.write((folder / LOG_NAME).read_bytes())
        if follow:
            _end(_as_fetched(folder, job_id), stack)
        return
    with (
        context.connect(outputs, identity) as connection,
        output.ClusterText(sys.stdout, raw=raw) as shown,
    ):
        job = slurm.find(connection, job_id)
        path = outputs.log_path(job.name, job.id)
        if not follow:
            shown.write(job_log.read(connection, path))
            return
        job = job_log.follow(
            connection,
            path,
            job.id,
            write=shown.write,
            on_state=say,
            on_lost=lambda error: output.note(error.trying_again),
        )
    _end(job, stack)


def _as_fetched(folder: Path, job_id: str) -> Job:
    """The job as its run record tells its end: a paused stack has no Slurm to ask."""
    from cost.run_record import FILE_NAME
    from infra.clients.slurm import Job
    from infra.jobs.records import read_object

    record = read_object(folder / FILE_NAME)
    code = record.get("exit_code")
    if not isinstance(code, int):
        output.note(
            f"job {job_id}: how it ended is not known here: "
            "no run record was fetched with it; resume the stack to ask Slurm"
        )
        raise typer.Exit(NOT_RUN)
    state = "FAILED" if code else "COMPLETED"
    return Job(id=job_id, name=str(record.get("job")), state=state, exit_code=code)


def _end(job: Job, stack: str) -> NoReturn:
    """Says what the job's end means, and ends with its status."""
    from infra.jobs.follow import outcome

    output.note(f"job {job.id}: {outcome(job, stack)}")
    raise typer.Exit(job.status)
