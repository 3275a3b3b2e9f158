"""Submit a declared job, the pipeline that ends with it, or a search, within the stack's budget.

Owns what is printed of it, and what every command that submits reads of this checkout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated

from cost.runs.runs import pipeline_cost, pipeline_line, plain_pipeline, plain_run, schedule_lines
from cost.runs.searches import plain_search
from cost.size.shape import SizeError
from infra.cli import context, interrupts, output
from infra.cli.context import arg, opt
from infra.cli.output import Format
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.jobs import history, recipes
from infra.jobs.history import Submitted
from infra.jobs.ledger import JobLedger, budget_lines, check_together, lines_together, open_ledger
from infra.jobs.recipes import Request
from infra.jobs.search import prepare_search, trials_to_submit
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.schedule import pipeline as pipeline_of
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec, SearchSpec


def prepare(
    spec: StackSpec,
    jobs: Sequence[JobSpec],
    sets: Mapping[str, Sequence[str]],
    search: SearchSpec | None = None,
) -> tuple[JobLedger, Mapping[str, bytes], dict[str, Request]]:
    """The stack's ledger, this checkout's code by path, and each job with its forecast and `sets`.

    Nothing is sent yet; everything that is wrong is refused at once. `search`: its array is made in
    the place of the job.
    """
    found: dict[str, Request] = {}
    problems: list[str] = []
    ledger = open_ledger(spec, context.state_root(), output.note)
    code = context.local_code(spec.name)
    if spec.nodes.paused:
        output.note(
            f"{spec.name}: declared as paused: the next `pulumi up` takes the workers away from "
            f"what runs; soperator cluster resume --stack {spec.name} keeps them"
        )
    for job in jobs:
        own = sets.get(job.name, ())
        try:
            recipes.job_args(own)
            recipes.refuse_wrong(context.CHECKOUT, job, own, search and search.settings)
            if search is None:
                found[job.name] = recipes.prepare(ledger, job, code, own)
            else:
                found[search.name] = prepare_search(ledger, search, code, own)
        except (JobsError, SizeError) as error:
            problems.append(str(error))
    if problems:
        raise JobsError("\n".join(problems))
    return ledger, code, found


def submit(
    job: Annotated[str, arg("Job or search that the stack declares.")],
    stack: context.StackOption = DEFAULT_STACK,
    sets: Annotated[
        list[str] | None,
        opt(
            "Change a value of the recipe; repeatable. With --pipeline: JOB:KEY=VALUE.",
            "--set",
            "KEY=VALUE",
        ),
    ] = None,
    pipeline: Annotated[bool, opt("Submit what the job needs as well, in order.")] = False,
    after: Annotated[str | None, opt("Start after this job succeeded.", "ID")] = None,
    again: context.AgainOption = False,
    sync: context.SyncOption = False,
    dry_run: Annotated[bool, opt("Show what would run and when; queue nothing.")] = False,
    force: context.ForceOption = False,
    identity: context.IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Submit a declared job or search; prints its id, and what it is expected to cost."""
    outputs = context.caller(stack, identity)
    outputs.check_job(job)
    if after is not None:
        slurm.job_id(after)
    spec, own, is_json = context.spec(stack), sets or (), format is Format.JSON
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    search = next((each for each in spec.searches if each.name == job), None)
    if search is not None and pipeline:
        raise UserError(f"--pipeline: {job} is a search; submit what its job needs first")
    last = job if search is None else search.job
    if last not in (each.name for each in spec.jobs):
        raise UserError(
            f"{spec.name}: jobs: {last!r} is deployed but no longer declared; run `pulumi up "
            f"--stack {spec.name}`"
        )
    whole = pipeline_of(spec, last)
    jobs = whole if pipeline else whole[-1:]
    for each in jobs if pipeline else ():
        outputs.check_job(each.name)
    by_job = history.settings_by_job(own, jobs, job) if pipeline else {last: own}
    ledger, code, requests = prepare(spec, jobs, by_job, search)
    request = requests[job]
    cost = pipeline_cost(whole, ledger.rates, ledger.records, by_job if pipeline else None)
    schedule = schedule_lines(cost, datetime.now(UTC))
    if pipeline:
        output.note(pipeline_line(cost), *schedule)
    with context.connect(outputs, identity) as connection:
        submitter = context.submitter(connection, outputs, ledger, code, sync=sync)
        with nullcontext() if dry_run else submitter.alone():
            if search is not None and not again:
                numbers = trials_to_submit(search, submitter, own)
                if done := len(request.tasks) - len(numbers):
                    output.note(f"{job}: {done} trials are done or on their way")
                if not numbers:
                    output.note(
                        f"nothing is left: soperator runs leaderboard {job} -s {stack} ranks "
                        "them; --again submits all once more"
                    )
                    if is_json:
                        output.print_json({"job_id": None, **_plain(request)})
                    return
                if done:
                    request = requests[job] = prepare_search(ledger, search, code, own, numbers)
            if search is not None:
                # An array waits for nothing but --after.
                jobs = (replace(jobs[0], name=job, after=()),)
            known = history.find_equivalent(
                jobs,
                by_job,
                submitter,
                again=again or search is not None,
                fits=lambda each: pipeline or after in (None, each.after),
            )
            plain = plain_pipeline(cost) if pipeline else _plain(request)
            steps = tuple(each for each in cost.steps if known.get(each.job.name) is None)
            what, usd = f"pipeline to {job}", replace(cost, steps=steps).forecast_usd
            if dry_run:
                now = datetime.now(UTC)
                if pipeline:
                    output.note(*lines_together(ledger, what, usd, now))
                else:
                    if (same := known[job]) is not None:
                        output.note(
                            f"{job}: nothing would be submitted: job {same.job_id} counts, unless "
                            "--again"
                        )
                    if search is None:
                        config = request.tasks[None].config
                        plain = {"config": config and json.loads(config), **plain}
                        output.note(*schedule)
                    output.note(*budget_lines(ledger, request.run, now))
                text = history.pipeline_text(
                    jobs,
                    known if pipeline else {job: None},
                    lambda each, ids: submitter.dry_run(replace(requests[each.name], after=ids)),
                    after=after,
                )
                if is_json:
                    output.print_json({"script": text, **plain})
                else:
                    print(text, end="")
                if request.search is not None and request.search.over is not None:
                    raise UserError(f"{request.search.over}; nothing was submitted")
                return
            if pipeline and not force:
                check_together(ledger, connection, outputs.login_host_key, what, usd)

            def send(wanted: JobSpec, ids: str | None) -> Submitted:
                with interrupts.held():  # until the id is known
                    asked = replace(requests[wanted.name], after=ids)
                    return submitter.submit(asked, force=force, once=not again and after is None)

            sent = history.submit_pipeline(jobs, known, submitter, send, after=after)
    rows = [{**asdict(each.submission), "is_equivalent": each.is_equivalent} for each in sent]
    if is_json:
        output.print_json({**plain, "submissions": rows} if pipeline else {**rows[0], **plain})
    elif pipeline:
        output.print_table(
            ("ID", "JOB", "AFTER", "SUBMITTED"),
            [
                (made.job_id, made.job, made.after, "before" if each.is_equivalent else "now")
                for each in sent
                for made in (each.submission,)
            ],
        )
        output.note(
            "Slurm starts each once those before it succeeded, and cancels what waits for one that "
            f"failed; see: soperator status -s {stack}"
        )
    else:
        print(job_id := sent[0].submission.job_id)
        told = f"is job {job_id}; log: soperator logs {job_id} -s {stack}"
        if search is not None:
            ranks = f"ranks as trials end: soperator runs leaderboard {job} -s {stack}"
            told = f"is array {job_id}; {ranks}"
        elif sent[0].is_equivalent:
            output.note(f"{job}: nothing was submitted; --again submits it once more")
        output.note(f"{job} {told}")


def _plain(request: Request) -> dict[str, object]:
    """What a program reads of a job or a search before it is submitted."""
    if request.search is not None:
        return plain_search(request.search)
    plan = request.tasks[None].plan
    return {"forecast": plain_run(request.run), "plan": plan and plan.to_json()}
