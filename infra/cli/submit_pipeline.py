"""`soperator submit NAME --pipeline`: the job and everything that it needs, as one submission.

Owns what is printed of it. The order and what is left out are infra/jobs/submit_once.py's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from infra.cli import context, interrupts, output, submission
from infra.cli.output import Format

if TYPE_CHECKING:
    from cost.runs.pipelines import PipelineCost
    from infra.clients.pulumi import StackOutputs
    from infra.jobs.submit_once import Sent
    from stacks.slurm_spec import JobSpec
    from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user asked for."""

    after: str | None
    again: bool
    sync: bool
    dry_run: bool
    force: bool
    format: Format


def run(
    spec: StackSpec,
    outputs: StackOutputs,
    last: JobSpec,
    *,
    sets: Sequence[str],
    options: Options,
    identity: Path | None,
) -> None:
    """Submits the pipeline that ends with `last`, or shows every sbatch of it."""
    from cost.runs.pipelines import pipeline_cost, pipeline_line, plain_pipeline, schedule_lines
    from infra.jobs import ledger, submit, submit_once
    from stacks.pipeline import pipeline as jobs_of

    jobs = jobs_of(spec, last.name)
    for job in jobs:
        submit.check_job(outputs, job.name)
    by_job = submit_once.settings_by_job(sets, jobs, last.name)
    made = submission.ready_all(spec, jobs, by_job)
    first = made[last.name]
    books = first.books
    cost = pipeline_cost(jobs, books.rates, books.records, by_job)
    steps = [replace(step, run=made[step.job.name].order.run) for step in cost.steps]
    cost = replace(cost, steps=tuple(steps))
    output.note(pipeline_line(cost))
    for line in schedule_lines(cost, datetime.now(UTC)):
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
                output.print_json({"script": text, **plain_pipeline(cost)})
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
    _print(sent, cost, options, spec.name)


def _print(sent: Sequence[Sent], cost: PipelineCost, options: Options, stack: str) -> None:
    from cost.runs.pipelines import plain_pipeline

    if options.format is Format.JSON:
        rows = [{**asdict(each.submission), "is_earlier": each.is_earlier} for each in sent]
        output.print_json({**plain_pipeline(cost), "submissions": rows})
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
