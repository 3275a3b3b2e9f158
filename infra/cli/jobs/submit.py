"""Submit a declared job, the pipeline that ends with it, or a search, within the stack's budget.

Owns what is printed of it, and what every command that submits reads of this checkout.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cost.runs.runs import pipeline_cost, pipeline_line, plain_pipeline, plain_run, schedule_lines
from cost.runs.searches import plain_search, search_line
from cost.size.shape import SizeError
from infra.cli import context, interrupts, output
from infra.cli.context import (
    AgainOption,
    ForceOption,
    IdentityOption,
    StackOption,
    SyncOption,
    arg,
    opt,
)
from infra.cli.output import Format
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Connection
from infra.jobs import history, recipes
from infra.jobs.history import Submitted
from infra.jobs.ledger import JobLedger, budget_lines, check_together, lines_together, open_ledger
from infra.jobs.recipes import Request
from infra.jobs.submit import Submitter, check_job
from infra.render.delivery import hash_files
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.schedule import pipeline as pipeline_of
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec, SearchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Requests that were accepted here; nothing is sent yet."""

    ledger: JobLedger
    code: Mapping[str, bytes]
    """This checkout's, by path."""
    requests: Mapping[str, Request]
    """By job."""

    def submitter(
        self, connection: Connection, outputs: StackOutputs, *, sync: bool = False
    ) -> Submitter:
        """What submits them; with `sync` the code is sent first."""
        # Of an attached cluster nobody else delivers.
        sends = sync or outputs.attached_key is not None
        return context.submitter(
            connection,
            outputs,
            books=lambda: self.ledger,
            code_hash=hash_files(self.code),
            git_revision=context.git_revision(),
            store=lambda: context.run_config_store(outputs),
            sent_code=self.code if sends else None,
        )


def prepare(
    spec: StackSpec, jobs: Sequence[JobSpec], sets: Mapping[str, Sequence[str]]
) -> Prepared:
    """The jobs, each with its forecast and `sets`; everything that is wrong is refused at once."""
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
            recipes.refuse_wrong(context.CHECKOUT, job, own)
            found[job.name] = recipes.prepare(ledger, job, code, own, log=output.note)
        except (JobsError, SizeError) as error:
            problems.append(str(error))
    if problems:
        raise JobsError("\n".join(problems))
    return Prepared(ledger=ledger, code=code, requests=found)


def submit(
    job: Annotated[str, arg("Job or search that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
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
    again: AgainOption = False,
    sync: SyncOption = False,
    dry_run: Annotated[bool, opt("Show what would run and when; queue nothing.")] = False,
    force: ForceOption = False,
    identity: IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Submit a declared job or search; prints its id, and what it is expected to cost."""
    outputs = context.caller(stack, identity)
    check_job(outputs, job)
    if after is not None:
        slurm.job_id(after)
    spec = context.spec(stack)
    if force and spec.budget is None:
        output.note(f"--force has no effect: {stack} declares no budget")
    options = Options(
        after=after,
        again=again,
        sync=sync,
        dry_run=dry_run,
        force=force,
        identity=identity,
        is_json=format is Format.JSON,
    )
    search = next((each for each in spec.searches if each.name == job), None)
    if search is not None:
        if pipeline:
            raise UserError(f"--pipeline: {job} is a search; submit what its job needs first")
        _submit_search(spec, outputs, search, sets or (), options)
    elif pipeline:
        _submit_pipeline(spec, outputs, declared(spec, job), sets or (), options)
    else:
        _submit_job(spec, outputs, declared(spec, job), sets or (), options)


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
    """What the user gave."""

    after: str | None
    again: bool
    sync: bool
    dry_run: bool
    force: bool
    identity: Path | None
    is_json: bool

    @contextmanager
    def entered(self, outputs: StackOutputs, prepared: Prepared) -> Generator[Submitter]:
        """What submits there, alone from here unless it is a dry run."""
        with context.connect(outputs, self.identity) as connection:
            submitter = prepared.submitter(connection, outputs, sync=self.sync)
            with nullcontext() if self.dry_run else submitter.alone():
                yield submitter

    def submit(self, submitter: Submitter, request: Request, after: str | None) -> Submitted:
        """The job of the request; signals wait until its id is known."""
        with interrupts.held():
            return submitter.submit(
                request, force=self.force, after=after, once=not self.again and self.after is None
            )

    def show(self, text: str, **values: object) -> None:
        """Prints a dry run."""
        if self.is_json:
            output.print_json({"script": text, **values})
        else:
            print(text, end="")

    def tell(self, sent: Submitted, *lines: str, **values: object) -> None:
        """Prints the id of what was submitted; `lines` are for people, `values` for programs."""
        if self.is_json:
            made = {**asdict(sent.submission), "is_equivalent": sent.is_equivalent}
            output.print_json({**made, **values})
            return
        print(sent.submission.job_id)
        output.note(*lines)


def _submit_job(
    spec: StackSpec, outputs: StackOutputs, job: JobSpec, sets: Sequence[str], options: Options
) -> None:
    recipes.job_args(sets)
    prepared = prepare(spec, [job], {job.name: sets})
    ledger, request = prepared.ledger, prepared.requests[job.name]
    values = {
        "forecast": plain_run(request.run),
        "plan": (plan := request.tasks[None].plan) and plan.to_json(),
    }
    with options.entered(outputs, prepared) as submitter:
        known = history.find_equivalent(
            [job],
            {job.name: sets},
            submitter,
            again=options.again,
            fits=lambda each: options.after in (None, each.after),
        )
        same = known[job.name]
        if options.dry_run:
            if same is not None:
                output.note(
                    f"{job.name}: nothing would be submitted: job {same.job_id} counts, unless "
                    "--again"
                )
            now = datetime.now(UTC)
            cost = pipeline_cost(pipeline_of(spec, job.name), ledger.rates, ledger.records)
            output.note(*schedule_lines(cost, now))
            output.note(*budget_lines(ledger, request.run, now))
            config = request.tasks[None].config
            options.show(
                submitter.dry_run(request, after=options.after),
                config=None if config is None else json.loads(config),
                **values,
            )
            return
        if same is None:
            sent = options.submit(submitter, request, options.after)
        else:
            sent = Submitted(submission=same, is_equivalent=True)
    job_id = sent.submission.job_id
    log = f"{job.name} is job {job_id}; log: soperator logs {job_id} -s {spec.name}"
    again = f"{job.name}: nothing was submitted; --again submits it once more"
    options.tell(sent, *([again] if sent.is_equivalent else []), log, **values)


def _submit_pipeline(
    spec: StackSpec, outputs: StackOutputs, last: JobSpec, sets: Sequence[str], options: Options
) -> None:
    jobs = pipeline_of(spec, last.name)
    for job in jobs:
        check_job(outputs, job.name)
    by_job = history.settings_by_job(sets, jobs, last.name)
    prepared = prepare(spec, jobs, by_job)
    ledger, requests = prepared.ledger, prepared.requests
    cost = pipeline_cost(jobs, ledger.rates, ledger.records, by_job)
    steps = [replace(step, run=requests[step.job.name].run) for step in cost.steps]
    cost = replace(cost, steps=tuple(steps))
    output.note(pipeline_line(cost))
    output.note(*schedule_lines(cost, datetime.now(UTC)))
    with options.entered(outputs, prepared) as submitter:
        known = history.find_equivalent(jobs, by_job, submitter, again=options.again)
        rest = replace(cost, steps=tuple(each for each in steps if known[each.job.name] is None))
        what, usd, now = f"pipeline to {last.name}", rest.forecast_usd, datetime.now(UTC)
        if options.dry_run:
            output.note(*lines_together(ledger, what, usd, now))
            text = history.pipeline_text(
                jobs,
                known,
                lambda job, ids: submitter.dry_run(requests[job.name], after=ids),
                after=options.after,
            )
            options.show(text, **plain_pipeline(cost))
            return
        if not options.force:
            check_together(
                ledger,
                submitter.connection,
                what,
                usd,
                cluster=outputs.login_host_key,
                log=output.note,
            )
        sent = history.submit_pipeline(
            jobs,
            known,
            submitter,
            lambda job, ids: options.submit(submitter, requests[job.name], ids),
            after=options.after,
        )
    if options.is_json:
        rows = [{**asdict(each.submission), "is_equivalent": each.is_equivalent} for each in sent]
        output.print_json({**plain_pipeline(cost), "submissions": rows})
        return
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
        f"failed; see: soperator status -s {spec.name}"
    )


def _submit_search(
    spec: StackSpec,
    outputs: StackOutputs,
    search: SearchSpec,
    sets: Sequence[str],
    options: Options,
) -> None:
    """Submits the trials that are left, or shows the sbatch and what all of them cost."""
    from infra.jobs.search import prepare_search, trials_to_submit

    recipes.job_args(sets)
    job = next(each for each in spec.jobs if each.name == search.job)
    recipes.refuse_wrong(context.CHECKOUT, job, sets, search.settings)
    ledger = open_ledger(spec, context.state_root(), output.note)
    code = context.local_code(spec.name)
    trials = prepare_search(ledger, search, code, sets)
    output.note(search_line(trials.cost))
    prepared = Prepared(ledger=ledger, code=code, requests={})
    with options.entered(outputs, prepared) as submitter:
        numbers = trials.numbers
        if not options.again:
            numbers = trials_to_submit(search, submitter, sets)
        if len(numbers) < len(trials.numbers):
            done = len(trials.numbers) - len(numbers)
            output.note(f"{search.name}: {done} trials are done or on their way")
            if not numbers:
                output.note(
                    f"nothing is left: soperator runs leaderboard {search.name} -s {spec.name} "
                    "ranks them; --again submits all once more"
                )
                if options.is_json:
                    output.print_json({"job_id": None, **plain_search(trials.cost)})
                return
            trials = prepare_search(ledger, search, code, sets, numbers)
            output.note(search_line(trials.cost))
        request, plain = trials.request, plain_search(trials.cost)
        if options.dry_run:
            output.note(*budget_lines(ledger, request.run, datetime.now(UTC)))
            options.show(submitter.dry_run(request, after=options.after), **plain)
            if request.over is not None:
                raise UserError(f"{request.over}; nothing was submitted")
            return
        sent = options.submit(submitter, request, options.after)
    ranks = f"ranks as trials end: soperator runs leaderboard {search.name} -s {spec.name}"
    options.tell(sent, f"{search.name} is array {sent.submission.job_id}; {ranks}", **plain)
