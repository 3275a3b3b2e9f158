"""`soperator submit NAME`: one declared job, with its forecast, within the stack's budget."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output, submission
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.errors import CliError
from infra.cli.output import Format

if TYPE_CHECKING:
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
    from cost.runs import plain_run
    from infra.jobs import budget, submit

    outputs = context.read(stack)
    submit.check_job(outputs, job)
    submit.job_args(sets or ())
    spec = context.spec(stack)
    made = submission.ready(spec, declared(spec, job), sets or ())
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    with context.connect(outputs, identity) as connection:
        if dry_run:
            for line in budget.budget_lines(made.books, made.order.run, datetime.now(UTC)):
                output.note(line)
            print(submit.dry_run(connection, outputs, job, sets=sets or (), after=after), end="")
            return
        sent = made.submit(connection, outputs, sync=sync, force=force, after=after)
    if format is Format.JSON:
        output.print_json(
            {
                **asdict(sent),
                "forecast": plain_run(made.order.run),
                "plan": made.order.plan and made.order.plan.to_json(),
            }
        )
        return
    print(sent.job_id)
    output.note(f"{job} is job {sent.job_id}; log: soperator logs {sent.job_id} -s {stack}")


def declared(spec: StackSpec, name: str) -> JobSpec:
    """The job in the stack file; one that only the deployed stack knows is refused."""
    for job in spec.jobs:
        if job.name == name:
            return job
    raise CliError(
        f"{spec.name}: jobs: {name!r} is deployed but no longer declared; run `pulumi up --stack "
        f"{spec.name}`"
    )
