"""`soperator status [ID]`: what runs, waits and ran on a cluster, why, and until when."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import Format
from infra.state import DEFAULT_STACK

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs
    from infra.clients.ssh import Connection

_CLEAR = "\x1b[2J\x1b[H"


def command(
    job_id: Annotated[str | None, typer.Argument(help="Job id; every job without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    days: Annotated[int, typer.Option(min=1, help="How far back to look.")] = 7,
    mine: Annotated[
        bool, typer.Option("--mine", help="Jobs of the user that enters, as `squeue -u $USER`.")
    ] = False,
    filesystems: Annotated[
        bool, typer.Option("--filesystems", help="How full the mounted filesystems are instead.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="Time between looks of --watch.")
    ] = 2.0,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """List the jobs of a cluster, or show one; or how full its filesystems are."""
    outputs = context.read(stack)
    _remind(stack)
    with context.connect(outputs, identity) as connection:
        while True:
            if watch and format is Format.TABLE:
                print(f"{_CLEAR if sys.stdout.isatty() else ''}{datetime.now(UTC):%H:%M:%S} UTC")
            if filesystems:
                _filesystems(connection, outputs, format)
            else:
                _jobs(connection, outputs, job_id, days, format, mine=mine)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(every)


def _remind(stack: str) -> None:
    """Say that the stack's declared end has passed or comes near."""
    from stacks.lifetime import reminders
    from stacks.load import StackError

    try:
        spec = context.spec(stack)
    except StackError:
        return  # the jobs of a stack can be looked at without its file
    for line in reminders(spec, datetime.now(UTC)):
        output.note(line)


def _jobs(
    connection: Connection,
    outputs: StackOutputs,
    job_id: str | None,
    days: int,
    format: Format,
    *,
    mine: bool,
) -> None:
    from infra.clients import slurm
    from infra.jobs import follow, history
    from infra.jobs.follow import outcome, rest_lines, why

    if job_id is None:
        jobs = slurm.recent(connection, days=days, mine=mine)
    else:
        jobs = (slurm.find(connection, job_id),)
    stack = outputs.stack
    cluster = outputs.login_host_key
    hours = follow.forecast_hours(context.state_root(), stack, cluster)
    submissions = history.submissions(context.state_root(), stack)
    names = {each.job_id: each.job for each in submissions if each.cluster == cluster}
    names |= {job.id: job.name for job in jobs}
    ends = {job.id: follow.expected(job, hours.get(job.id)) for job in jobs}
    if format is Format.JSON:
        output.print_json(
            [
                {
                    **asdict(job),
                    "reason": why(job, names) if job.waits else None,
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
                why(job, names) if job.waits else job.where,
                ends[job.id],
            )
            for job in jobs
        ],
    )
    if job_id is not None and (end := outcome(jobs[0], stack)) is not None:
        output.note(str(end))
        for line in rest_lines(jobs[0], submissions, cluster):
            output.note(line)


def _filesystems(connection: Connection, outputs: StackOutputs, format: Format) -> None:
    from infra.jobs.nodes import usage

    found = usage(connection, outputs.mounts)
    if format is Format.JSON:
        output.print_json([{**asdict(each), "used_percent": each.used_percent} for each in found])
        return
    output.print_table(
        ("MOUNT", "TYPE", "SIZE GIB", "USED GIB", "FREE GIB", "USED", "BEHIND IT"),
        [
            (
                each.path,
                each.kind or "workers only",
                *(_gib(size) for size in (each.size_bytes, each.used_bytes, each.free_bytes)),
                None if each.used_percent is None else f"{each.used_percent:.0f} %",
                each.what,
            )
            for each in found
        ],
    )
    for each in found:
        if each.nearly_full:
            output.note(
                f"{each.path}: {each.used_percent:.0f} % full: remove what no job needs, or raise "
                "its size_gib and run pulumi up"
            )


def _gib(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else f"{size_bytes / 2**30:,.1f}"
