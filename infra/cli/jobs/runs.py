"""What ran, what differs, the same once more, also without Slurm; how a search's trials rank."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cost.report.layout import picked, small_usd_text
from cost.run_record import Outcome
from infra.cli import context, interrupts, output
from infra.cli.context import StackOption, arg, moment, opt, put, share
from infra.cli.jobs.submit import prepare
from infra.cli.output import Format, comparing, exit_code
from infra.jobs.ledger import budget_lines, open_ledger
from infra.jobs.recipes import job_args
from infra.jobs.search import NO_METRIC, Board, runs_of, states_of, usd_by_job
from infra.jobs.search import leaderboard as board_of
from infra.render.delivery import hash_files
from infra.render.kube_job import how_to_run, pytorch_job, service_and_job, to_yaml, training_pods
from infra.reports.acceptance import comparison
from infra.reports.acceptance.comparison import compare, read_run
from infra.reports.acceptance.run import given
from infra.reports.runs import diff as differ
from infra.reports.runs import run
from infra.reports.runs.run import Run, find_run
from infra.state import DEFAULT_STACK
from stacks.errors import UserError, nearest
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec
from stacks.spec.slurm import SearchSpec

JobsOption = Annotated[list[str] | None, opt("Of this job only; repeatable.", "--job", "NAME")]
SharedOption = Annotated[
    bool, opt("First bring the runs of others from the stack's bucket.", "--shared")
]


def list_(
    stack: StackOption = DEFAULT_STACK,
    job: JobsOption = None,
    kind: Annotated[list[str] | None, opt("train, evaluate, ...; repeatable.", "KIND")] = None,
    outcome: Annotated[list[str] | None, opt("PASS, FAIL or NOT_RUN.", "OUTCOME")] = None,
    model: Annotated[str | None, opt("A part of the model's name.")] = None,
    since: Annotated[str | None, opt("Started since, UTC, such as 2026-11-01.", "TIME")] = None,
    last: Annotated[int | None, opt("So many of the newest.", min=1)] = None,
    shared: SharedOption = False,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """List runs with outcome, model, speed, dollars and code."""
    wrong = sorted(set(outcome or ()) - set(Outcome))
    if wrong:
        raise UserError(f"--outcome {wrong[0]}: not one of {', '.join(Outcome)}")
    found = run.select(
        _runs(stack, shared=shared),
        jobs=job or (),
        kinds=kind or (),
        outcomes=outcome or (),
        model=model,
        since=None if since is None else moment("--since", since, datetime.now(UTC)),
        last=last,
    )
    if format is Format.JSON:
        output.print_json([run.plain(each) for each in found])
        return
    if not found:
        output.note(f"{stack}: no such run is here; soperator pull ID -s {stack} brings one")
        return
    output.print_table(run.HEADERS, run.rows(found))
    output.note(*run.notes(found))


def diff(
    first: Annotated[str, arg("Run, as `soperator runs list` names it.")],
    second: Annotated[str, arg("Run that is held against it.")],
    stack: StackOption = DEFAULT_STACK,
    tolerance: Annotated[float, opt("Losses that agree are this close.", "PERCENT", min=0)] = 1.0,
    shared: SharedOption = False,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Compare two runs; ends 0 where their losses agree, 1 DIFFER, 69 NOT RUN, 2 for trouble."""
    with comparing():
        close = float(share("--tolerance", tolerance))
        runs = _runs(stack, shared=shared)
        found = differ.diff(
            *(find_run(runs, name, stack) for name in (first, second)), tolerance=close
        )
    if format is Format.JSON:
        output.print_json(differ.plain(found))
    else:
        output.print_table(differ.HEADERS, differ.rows(found))
        print(f"losses: {found.losses}")
        output.note(*found.notes)
    raise typer.Exit(exit_code(found.losses.verdict))


def reproduce(
    name: Annotated[str, arg("Run to repeat.", "RUN")],
    stack: StackOption = DEFAULT_STACK,
    submit: Annotated[bool, opt("Submit it; without it only what would be is shown.")] = False,
    once_more: context.AgainOption = False,
    sync: context.SyncOption = False,
    force: context.ForceOption = False,
    shared: SharedOption = False,
    identity: context.IdentityOption = None,
) -> None:
    """Submit a run's recipe, settings, seed and code once more; shows it first."""
    wanted = find_run(_runs(stack, shared=shared), name, stack)
    spec = context.spec(stack)
    job = run.job_of(wanted, spec)
    files = context.local_code(stack)
    run.check_code(wanted, hash_files(files), context.CHECKOUT, context.state_root())
    sets = run.settings_of(wanted, job, files)
    outputs = context.caller(stack, identity)
    outputs.check_job(job.name)
    ledger, code, requests = prepare(spec, [job], {job.name: sets})
    request = replace(requests[job.name], reproduces=wanted.name)
    with context.connect(outputs, identity) as connection:
        if (line := run.check_data(wanted, connection)) is not None:
            output.note(line)
        submitter = context.submitter(connection, outputs, ledger, code, sync=sync)
        if not submit:
            output.note(*budget_lines(ledger, request.run, datetime.now(UTC)))
            print(submitter.dry_run(request), end="")
            output.note(
                f"nothing was submitted: soperator runs reproduce {name} --submit -s {stack} does "
                "it"
            )
            return
        with submitter.alone():
            found = None
            if not once_more:
                found = submitter.find(
                    job.name,
                    sets,
                    may_be_done=job.ends,
                    fits=lambda each: each.reproduces == wanted.name,
                )
            # Once it is queued it is written down and named, also where Ctrl-C came in between.
            with interrupts.held():
                if found is None:
                    found = submitter.submit(request, force=force, once=not once_more).submission
                else:
                    output.note(f"{job.name}: nothing was submitted; --again submits it once more")
                print(found.job_id, flush=True)
    output.note(
        f"{job.name} is job {found.job_id}; once it ended: soperator pull {found.job_id} "
        f"-s {stack} && soperator runs diff {wanted.name} {found.job_id} -s {stack}"
    )


def _runs(stack: str, *, shared: bool) -> Sequence[Run]:
    """The runs that are known here, after those of others came where that was asked."""
    state = context.state_root()
    ledger = open_ledger(context.spec(stack), state, lambda _: None)
    if shared:
        store = context.run_config_store(context.read(stack))
        if store is None:
            raise UserError(
                f"{stack}: has no bucket for its runs; declare storage.config_bucket_gib and run "
                "pulumi up"
            )
        output.note(f"{run.bring(store, state, stack)} files came from the bucket")
    entries = ledger.file.read().entries
    return run.read_runs(state, stack, rates=ledger.rates, entries=entries, say=output.note)


def leaderboard(
    search: Annotated[str, arg("Search that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    identity: context.IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Rank the trials of a declared search by its metric, with what each cost."""
    spec = context.spec(stack)
    wanted = declared(spec, search)
    outputs = context.caller(stack, identity)
    ledger = open_ledger(spec, context.state_root(), output.note)
    with context.connect(outputs, identity) as connection:
        runs = runs_of(connection, outputs, wanted.name)
        states = states_of(connection, wanted.name)
        usd = usd_by_job(
            ledger,
            connection,
            outputs.login_host_key,
            [run.job_id for run in runs],
            now=datetime.now(UTC),
        )
    board = board_of(wanted, runs, states, usd)
    if format is Format.JSON:
        trials = [asdict(row) for row in board.rows]
        output.print_json({**picked(board, _PLAIN, str), "trials": trials})
    else:
        _print(board, spec)


def declared(spec: StackSpec, name: str) -> SearchSpec:
    """The search in the stack file, or a refusal that names those that are there."""
    for search in spec.searches:
        if search.name == name:
            return search
    have = tuple(search.name for search in spec.searches)
    raise UserError(f"{spec.name}: searches: '{name}' is not declared{nearest(name, have)}")


def _print(board: Board, spec: StackSpec) -> None:
    search = board.search
    if spec.bill_heading is not None:
        output.note(spec.bill_heading)
    output.print_table(
        ("RANK", "TRIAL", search.metric.upper(), "USD", "STATE", "JOB", "SETTINGS"),
        [
            (
                row.rank,
                row.number,
                None if row.value is None else f"{row.value:.6g}",
                None if row.usd is None else small_usd_text(row.usd),
                row.state if row.reason is None else f"{row.state}: {row.reason}",
                row.job_id,
                shlex.join(row.settings),
            )
            for row in board.rows
        ],
    )
    former = f", {board.num_former} tasks with former settings in it" if board.num_former else ""
    output.note(f"{search.name}: {small_usd_text(board.usd)} so far{former}")
    if board.best is not None:
        sets = " ".join(f"--set {shlex.quote(each)}" for each in board.best.settings)
        output.note(f"the best ({search.goal} {search.metric}) for the job itself: {sets}")
    states = {row.state for row in board.rows}
    if NO_METRIC in states:
        output.note(
            f"{NO_METRIC}: {search.metric} is no finite number in a record that passed; name a "
            f"metric of it in searches.{search.name}.metric"
        )
    if states - {"PASS", NO_METRIC}:
        output.note(
            f"what did not pass is submitted again by: soperator submit {search.name} -s "
            f"{spec.name}"
        )


_PLAIN = "search=search.name search.job search.metric search.goal usd num_former"


def manifest(
    job: Annotated[str, arg("Job that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    image: Annotated[
        str | None, opt("Image with this code and torch; the job's container by default.")
    ] = None,
    pytorchjob: Annotated[bool, opt("For Kubeflow's training operator instead of a Job.")] = False,
    name: Annotated[str | None, opt("Of the objects and the run; the job's by default.")] = None,
    nodeset: Annotated[
        str | None, opt("Whose nodes; by default the first that has enough.")
    ] = None,
    sets: context.SetsOption = None,
    file: context.OutputOption = None,
) -> None:
    """Print a declared job as a Kubernetes Job or PyTorchJob; reads the stack file only."""
    spec = context.spec(stack)
    declared = next((each for each in spec.jobs if each.name == job), None)
    if declared is None:
        have = ", ".join(each.name for each in spec.jobs) or "none"
        raise UserError(f"{stack}: jobs: {job!r} is not declared (has: {have})")
    pods = training_pods(
        spec,
        declared,
        image=image,
        name=name,
        nodeset=nodeset,
        settings=job_args(sets or ()),
        operator=pytorchjob,
    )
    put(to_yaml(pytorch_job(pods) if pytorchjob else service_and_job(pods)), file)
    output.note(*how_to_run(spec, pods, file=file and str(file)))


def overhead(
    files: Annotated[
        list[Path] | None, arg("Two results; the second is held against it.", "FIRST SECOND")
    ] = None,
    limit: Annotated[float, opt("Overhead that the second must stay under.", "PERCENT")] = 3.0,
    kube_job: Annotated[bool, opt("Print the Kubernetes Job of the same ranks instead.")] = False,
    stack: StackOption = DEFAULT_STACK,
    image: Annotated[str | None, opt("With --kube-job: image with this code and torch.")] = None,
    nodes: Annotated[int, opt("With --kube-job: pods, one a node.")] = 1,
    nodeset: Annotated[
        str | None, opt("With --kube-job: whose nodes; the first by default.")
    ] = None,
    name: Annotated[str, opt("With --kube-job: its name.")] = "accept",
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
    file: context.OutputOption = None,
) -> None:
    """Compare two results: overhead with its interval; 0 PASS, 1 FAIL, 69 NOT RUN, 2 trouble."""
    if kube_job:
        if image is None:
            raise UserError(
                "runs overhead: --kube-job needs --image, with this code and torch in it"
            )
        spec = context.spec(stack)
        worker = _worker(spec, nodeset)
        pods = comparison.kube_pods(spec, worker, name=name, image=image, nodes=nodes)
        put(to_yaml(service_and_job(pods)), file)
        output.note(*how_to_run(spec, pods, comparison.read_by(pods), file=file and str(file)))
        return
    with comparing(), given(files or []):
        if files is None or len(files) != 2:
            raise UserError(
                "runs overhead: give two result files, the one that counts as 100 % first"
            )
        found = compare(read_run(files[0]), read_run(files[1]), limit_percent=limit)
    if file is not None:
        put(comparison.html(found), file)
    if format is Format.JSON:
        output.print_json(comparison.plain(found))
    else:
        output.print_table(comparison.HEADERS, comparison.rows(found))
        for line in comparison.notes(found):
            print(line)
    raise typer.Exit(exit_code(found.outcome))


def _worker(spec: StackSpec, nodeset: str | None) -> WorkerSpec:
    for worker in spec.nodes.workers:
        if nodeset in (None, worker.name):
            return worker
    have = ", ".join(worker.name for worker in spec.nodes.workers)
    raise UserError(f"{spec.name}: nodes.workers: {nodeset!r} is not a nodeset (has: {have})")
