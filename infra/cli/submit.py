"""`soperator submit NAME`: one declared job, from stack outputs alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.output import Format


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
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Submit a declared job; prints its id."""
    from infra.jobs import history, submit
    from infra.jobs import sync as code
    from infra.render.archive import hash_files

    outputs = context.read(stack)
    submit.check_job(outputs, job)
    submit.job_args(sets or ())
    files = context.local_code(stack)
    with context.connect(outputs, identity) as connection:
        if dry_run:
            print(submit.dry_run(connection, outputs, job, sets=sets or (), after=after), end="")
            return
        if sync:
            code.send(connection, outputs.code_path, files)
        submission = submit.submit(
            connection,
            outputs,
            job,
            code_hash=hash_files(files),
            sets=sets or (),
            after=after,
            git_revision=context.git_revision(),
        )
    history.remember(context.state_root(), submission)
    if format is Format.JSON:
        output.print_json(asdict(submission))
        return
    print(submission.job_id)
    output.note(
        f"{job} is job {submission.job_id}; log: soperator logs {submission.job_id} -s {stack}"
    )
