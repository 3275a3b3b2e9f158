"""Submit a declared job, the pipeline that ends with it, or a search, within the stack's budget.

Owns what is printed of it. Order, budget and what is left to send are infra/jobs's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cost.runs import pipelines
from cost.runs.runs import plain_run
from cost.runs.searches import plain_search, search_line
from infra.cli import context, interrupts, output
from infra.cli.context import AgainOption, ForceOption, IdentityOption, StackOption, SyncOption
from infra.cli.jobs import submission
from infra.cli.output import Format
from infra.clients import slurm
from infra.clients.pulumi import StackOutputs
from infra.jobs import ledger
from infra.jobs import submit as submitting
from infra.jobs import transfer as code
from infra.jobs.history import Earlier
from infra.jobs.ledger import open_books
from infra.jobs.submit import Submission
from infra.jobs.submit_once import Order, Sent
from infra.render.delivery import hash_files
from infra.render.sbatch import array_option
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.schedule import pipeline as jobs_of
from stacks.schedule import pipeline as pipeline_of
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec, SearchSpec


def submit(
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
    again: AgainOption = False,
    sync: SyncOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and when; queue nothing.")
    ] = False,
    force: ForceOption = False,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Submit a declared job or search; prints its id, and what it is expected to cost."""
    outputs = context.caller(stack, identity)
    submitting.check_job(outputs, job)
    if after is not None:
        slurm.job_id(after)
    spec = context.spec(stack)
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    options = Options(
        after=after, again=again, sync=sync, dry_run=dry_run, force=force, format=format
    )
    for search in spec.searches:
        if search.name == job:
            if pipeline:
                raise UserError(f"--pipeline: {job} is a search; submit what its job needs first")
            run_search(spec, outputs, search, sets=sets or (), options=options, identity=identity)
            return
    wanted = declared(spec, job)
    if pipeline:
        run_pipeline(spec, outputs, wanted, sets=sets or (), options=options, identity=identity)
        return
    submitting.job_args(sets or ())
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
            cost = pipelines.pipeline_cost(pipeline_of(spec, job), books.rates, books.records)
            for line in (
                *pipelines.schedule_lines(cost, now),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    after: str | None
    again: bool
    sync: bool
    dry_run: bool
    force: bool
    format: Format


def run_pipeline(
    spec: StackSpec,
    outputs: StackOutputs,
    last: JobSpec,
    *,
    sets: Sequence[str],
    options: Options,
    identity: Path | None,
) -> None:
    """Submits the pipeline that ends with `last`, or shows every sbatch of it."""
    from infra.jobs import submit, submit_once

    jobs = jobs_of(spec, last.name)
    for job in jobs:
        submit.check_job(outputs, job.name)
    by_job = submit_once.settings_by_job(sets, jobs, last.name)
    made = submission.ready_all(spec, jobs, by_job)
    first = made[last.name]
    books = first.books
    cost = pipelines.pipeline_cost(jobs, books.rates, books.records, by_job)
    steps = [replace(step, run=made[step.job.name].order.run) for step in cost.steps]
    cost = replace(cost, steps=tuple(steps))
    output.note(pipelines.pipeline_line(cost))
    for line in pipelines.schedule_lines(cost, datetime.now(UTC)):
        output.note(line)
    with (
        context.connect(outputs, identity) as connection,
        nullcontext() if options.dry_run else submission.alone(connection, outputs),
    ):
        earlier = first.earlier(connection, outputs)
        counts = submit_once.counted(jobs, by_job, earlier, again=options.again)
        left = replace(
            cost, steps=tuple(step for step in cost.steps if counts[step.job.name] is None)
        )
        what, usd, now = f"pipeline to {last.name}", left.forecast_usd, datetime.now(UTC)
        if options.dry_run:
            for line in ledger.lines_together(books, what, usd, now):
                output.note(line)
            text = submit_once.dry_run(
                jobs,
                counts,
                lambda job, ids: made[job.name].dry_run(connection, outputs, after=ids),
                after=options.after,
            )
            if options.format is Format.JSON:
                output.print_json({"script": text, **pipelines.plain_pipeline(cost)})
            else:
                print(text, end="")
            return
        if not options.force:
            ledger.check_together(
                books,
                connection,
                what,
                usd,
                cluster=outputs.login_host_key,
                now=now,
                say=output.note,
            )

        def send(job: JobSpec, after: str | None) -> Sent:
            with interrupts.held():
                return made[job.name].submit(
                    connection,
                    outputs,
                    sync=options.sync,
                    force=options.force,
                    after=after,
                    once=not options.again and options.after is None,
                )

        sent = submit_once.submit_pipeline(jobs, counts, earlier, send, after=options.after)
    _print_pipeline(sent, cost, options, spec.name)


def _print_pipeline(
    sent: Sequence[Sent], cost: pipelines.PipelineCost, options: Options, stack: str
) -> None:
    if options.format is Format.JSON:
        rows = [{**asdict(each.submission), "is_earlier": each.is_earlier} for each in sent]
        output.print_json({**pipelines.plain_pipeline(cost), "submissions": rows})
        return
    output.print_table(
        ("ID", "JOB", "AFTER", "SUBMITTED"),
        [
            (
                each.submission.job_id,
                each.submission.job,
                each.submission.after,
                "before" if each.is_earlier else "now",
            )
            for each in sent
        ],
    )
    output.note(
        "Slurm starts each once those before it succeeded, and cancels what waits for one that "
        f"failed; see: soperator status -s {stack}"
    )


def run_search(
    spec: StackSpec,
    outputs: StackOutputs,
    wanted: SearchSpec,
    *,
    sets: Sequence[str],
    options: Options,
    identity: Path | None,
) -> None:
    """Submits the trials that are left, or shows the sbatch and what all of them cost."""
    from infra.jobs import recipes, search, submit, submit_once

    submit.job_args(sets)
    job = next(each for each in spec.jobs if each.name == wanted.job)
    recipes.refuse_wrong_trials(context.CHECKOUT, job, sets, wanted.settings)
    books = open_books(spec, context.state_root(), output.note)
    files = context.local_code(spec.name)
    whole = search.order_search(books, wanted, files, sets)
    output.note(search_line(whole.cost))
    with (
        context.connect(outputs, identity) as connection,
        nullcontext() if options.dry_run else submission.alone(connection, outputs),
    ):
        earlier = Earlier(
            shell=connection,
            outputs=outputs,
            state=context.state_root(),
            code_hash=hash_files(files),
            say=output.note,
        )
        ordered = whole
        if not options.again:
            numbers = search.left(wanted, earlier, sets)
            if len(numbers) < len(whole.numbers):
                done = len(whole.numbers) - len(numbers)
                output.note(f"{wanted.name}: {done} trials are done or on their way")
                if not numbers:
                    output.note(
                        f"nothing is left: soperator runs leaderboard {wanted.name} -s {spec.name} "
                        "ranks them; --again submits all once more"
                    )
                    if options.format is Format.JSON:
                        output.print_json({"job_id": None, **plain_search(whole.cost)})
                    return
                ordered = search.order_search(books, wanted, files, sets, numbers)
                output.note(search_line(ordered.cost))
        if options.dry_run:
            for line in ledger.budget_lines(books, ordered.cost.run, datetime.now(UTC)):
                output.note(line)
            array = array_option(wanted, ordered.numbers)
            store = context.run_config_store(outputs)
            text = submit.dry_run(
                connection,
                outputs,
                wanted.name,
                code_hash=earlier.code_hash,
                exported=submit.environment(
                    outputs,
                    earlier.code_hash,
                    git_revision=context.git_revision(),
                    own=submit.TaskFiles(),
                    tasks={
                        number: submit_once.task_files(each, store)
                        for number, each in ordered.orders.items()
                    },
                ),
                sets=sets,
                after=options.after,
                array=array,
            )
            if options.format is Format.JSON:
                output.print_json({"script": text, **plain_search(ordered.cost)})
            else:
                print(text, end="")
            search.refuse_over(ordered)
            return
        if options.sync:
            code.send(connection, outputs, files)
        with interrupts.held():
            sent = search.dispatch_search(
                ordered,
                books,
                connection,
                outputs,
                state=context.state_root(),
                code_hash=earlier.code_hash,
                git_revision=context.git_revision(),
                say=output.note,
                after=options.after,
                force=options.force,
                store=context.run_config_store(outputs),
                once=not options.again and options.after is None,
            )
    made = sent.submission
    if options.format is Format.JSON:
        values = {**asdict(made), "is_earlier": sent.is_earlier}
        output.print_json({**values, **plain_search(ordered.cost)})
        return
    print(made.job_id)
    output.note(
        f"{wanted.name} is array {made.job_id}; ranks as trials end: soperator runs leaderboard "
        f"{wanted.name} -s {spec.name}"
    )
