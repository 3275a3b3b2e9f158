"""`soperator submit NAME`: a declared job, its pipeline or a search, within the stack's budget."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, interrupts, output, submission, submit_pipeline, submit_search
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import Format
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.jobs.submit import Submission
    from infra.jobs.submit_once import Order
    from stacks.slurm_spec import JobSpec
    from stacks.spec import StackSpec


def command(
    job: Annotated[str, typer.Argument(help="Job or search that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the recipe; repeatable. With --pipeline: JOB:KEY=VALUE.",
        ),
    ] = None,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Submit what the job needs as well, in order.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Start after this job succeeded.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Submit what is done or on its way once more.")
    ] = False,
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
    """Submit a declared job or search; prints its id, and what it is expected to cost."""
    from cost.runs.pipelines import pipeline_cost, schedule_lines
    from cost.runs.runs import plain_run
    from infra.clients import slurm
    from infra.jobs import ledger, submit
    from stacks.pipeline import pipeline as pipeline_of

    outputs = context.read(stack)
    submit.check_job(outputs, job)
    if after is not None:
        slurm.job_id(after)
    spec = context.spec(stack)
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    options = submit_pipeline.Options(
        after=after, again=again, sync=sync, dry_run=dry_run, force=force, format=format
    )
    for search in spec.searches:
        if search.name == job:
            if pipeline:
                raise UserError(f"--pipeline: {job} is a search; submit what its job needs first")
            submit_search.run(
                spec, outputs, search, sets=sets or (), options=options, identity=identity
            )
            return
    wanted = declared(spec, job)
    if pipeline:
        submit_pipeline.run(
            spec, outputs, wanted, sets=sets or (), options=options, identity=identity
        )
        return
    submit.job_args(sets or ())
    made = submission.ready(spec, wanted, sets or ())
    with context.connect(outputs, identity) as connection:

        def counting() -> Submission | None:
            if again:
                return None
            earlier = made.earlier(connection, outputs)
            return earlier.counting(
                job,
                sets or (),
                earlier.newest(wanted.after),
                done_counts=wanted.ends,
                fits=lambda each: after is None or each.after == after,
            )

        if dry_run:
            if (counts := counting()) is not None:
                output.note(
                    f"{job}: nothing would be submitted: job {counts.job_id} counts, unless --again"
                )
            books, now = made.books, datetime.now(UTC)
            cost = pipeline_cost(pipeline_of(spec, job), books.rates, books.records)
            for line in (
                *schedule_lines(cost, now),
                *ledger.budget_lines(books, made.order.run, now),
            ):
                output.note(line)
            text = made.dry_run(connection, outputs, after=after)
            if format is Format.JSON:
                output.print_json(_shown(text, made.order))
            else:
                print(text, end="")
            return
        with submission.alone(connection, outputs):
            found = counting()
            is_earlier = found is not None
            if found is None:
                with interrupts.held():
                    sent = made.submit(
                        connection,
                        outputs,
                        sync=sync,
                        force=force,
                        after=after,
                        once=not again and after is None,
                    )
                found, is_earlier = sent.submission, sent.is_earlier
    if format is Format.JSON:
        output.print_json(
            {
                **asdict(found),
                "is_earlier": is_earlier,
                "forecast": plain_run(made.order.run),
                "plan": made.order.plan and made.order.plan.to_json(),
            }
        )
        return
    print(found.job_id)
    if is_earlier:
        output.note(f"{job}: nothing was submitted; --again submits it once more")
    output.note(f"{job} is job {found.job_id}; log: soperator logs {found.job_id} -s {stack}")


def _shown(text: str, order: Order) -> dict[str, object]:
    """Job file, configuration and plan of a submission that is not made."""
    from cost.runs.runs import plain_run

    return {
        "script": text,
        "config": None if order.config is None else json.loads(order.config),
        "forecast": plain_run(order.run),
        "plan": order.plan and order.plan.to_json(),
    }


def declared(spec: StackSpec, name: str) -> JobSpec:
    """The job in the stack file; one that only the deployed stack knows is refused."""
    for job in spec.jobs:
        if job.name == name:
            return job
    raise UserError(
        f"{spec.name}: jobs: {name!r} is deployed but no longer declared; run `pulumi up --stack "
        f"{spec.name}`"
    )
