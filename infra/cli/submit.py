"""`soperator submit NAME`: one declared job, with its forecast, within the stack's budget."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from getpass import getuser
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.errors import CliError
from infra.cli.output import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost.forecast import Forecast, UnknownRun
    from cost.size.plan import Plan
    from stacks.slurm_spec import JobSpec
    from stacks.spec import StackSpec


def command(
    job: Annotated[str, typer.Argument(help="Job that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeatable."
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Start after this job succeeded.")
    ] = None,
    sync: Annotated[
        bool, typer.Option("--sync", help="Send this checkout's code first if it differs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and when; queue nothing.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Submit over the budget; the ledger records it.")
    ] = False,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Submit a declared job; prints its id, and what it is expected to cost."""
    from cost.runs import plain_run, run_lines
    from infra.jobs import budget, history, submit
    from infra.jobs import sync as code
    from infra.jobs.books import open_books
    from infra.render.archive import hash_files

    outputs = context.read(stack)
    submit.check_job(outputs, job)
    submit.job_args(sets or ())
    spec = context.spec(stack)
    books = open_books(spec, context.state_root())
    run = books.forecast(declared(spec, job), sets or ())
    now = datetime.now(UTC)
    for line in run_lines(run):
        output.note(line)
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    files = context.local_code(stack)
    plan = planned(spec, declared(spec, job), files, sets or (), run)

    def send() -> submit.Submission:
        submission = submit.submit(
            connection,
            outputs,
            job,
            code_hash=hash_files(files),
            sets=sets or (),
            after=after,
            git_revision=context.git_revision(),
            plan=plan and plan.to_bytes(),
        )
        history.remember(context.state_root(), submission)
        return submission

    with context.connect(outputs, identity) as connection:
        if dry_run:
            for line in budget.budget_lines(books, run, now):
                output.note(line)
            print(submit.dry_run(connection, outputs, job, sets=sets or (), after=after), end="")
            return
        if sync:
            code.send(connection, outputs.code_path, files)
        asking = budget.Asking(
            run=run, cluster=outputs.login_host_key, now=now, user=user(), force=force
        )
        submission = budget.submit_within_budget(books, connection, asking, send, say=output.note)
    if format is Format.JSON:
        output.print_json(
            {
                **asdict(submission),
                "forecast": plain_run(run),
                "plan": plan and plan.to_json(),
            }
        )
        return
    print(submission.job_id)
    output.note(
        f"{job} is job {submission.job_id}; log: soperator logs {submission.job_id} -s {stack}"
    )


def planned(
    spec: StackSpec,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str],
    run: Forecast | UnknownRun,
) -> Plan | None:
    """The plan to ship, told on standard error; a job that cannot be planned goes without one."""
    from cost.size.errors import SizeError
    from infra.jobs.plan import plan_lines, plan_of

    try:
        plan = plan_of(spec, job, files, sets, run)
    except SizeError as error:
        for line in str(error).splitlines():
            output.note(f"no plan: {line}")
        return None
    for line in plan_lines(plan) if plan is not None else ():
        output.note(line)
    return plan


def declared(spec: StackSpec, name: str) -> JobSpec:
    """The job in the stack file; one that only the deployed stack knows is refused."""
    for job in spec.jobs:
        if job.name == name:
            return job
    raise CliError(
        f"{spec.name}: jobs: {name!r} is deployed but no longer declared; run `pulumi up --stack "
        f"{spec.name}`"
    )


def user() -> str:
    """Who asks, as this machine knows them; the number where it has no name for them."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())
