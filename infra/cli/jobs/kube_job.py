"""A declared job as Kubernetes objects, and results compared between bare metal, Slurm and pods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import OutputOption, SetsOption, StackOption, put
from infra.cli.output import Format, comparing, exit_code
from infra.jobs.submit import job_args
from infra.render import kube_job
from infra.render.kube_job import how_to_run, service_and_job, to_yaml, training_pods
from infra.reports.acceptance import comparison
from infra.reports.acceptance.comparison import compare, read_run
from infra.reports.acceptance.result import given
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec


def manifest(
    job: Annotated[str, typer.Argument(help="Job that the stack declares.")],
    stack: StackOption = DEFAULT_STACK,
    image: Annotated[
        str | None,
        typer.Option(help="Image with this code and torch; the job's container by default."),
    ] = None,
    pytorchjob: Annotated[
        bool,
        typer.Option("--pytorchjob", help="For Kubeflow's training operator instead of a Job."),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Of the objects and the run; the job's by default.")
    ] = None,
    nodeset: Annotated[
        str | None,
        typer.Option(help="Whose nodes; by default the first that has enough."),
    ] = None,
    sets: SetsOption = None,
    file: OutputOption = None,
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
    if pytorchjob:
        objects = [kube_job.own_pods_only(pods), kube_job.pytorch_job(pods)]
    else:
        objects = service_and_job(pods)
    put(to_yaml(objects), file)
    for line in how_to_run(spec, pods, file=file and str(file)):
        output.note(line)


def overhead(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FIRST SECOND", help="Two results; the second is held against it."),
    ] = None,
    limit: Annotated[
        float, typer.Option(metavar="PERCENT", help="Overhead that the second must stay under.")
    ] = 3.0,
    kube_job: Annotated[
        bool, typer.Option("--kube-job", help="Print the Kubernetes Job of the same ranks instead.")
    ] = False,
    stack: StackOption = DEFAULT_STACK,
    image: Annotated[
        str | None, typer.Option(help="With --kube-job: image with this code and torch.")
    ] = None,
    nodes: Annotated[int, typer.Option(help="With --kube-job: pods, one a node.")] = 1,
    nodeset: Annotated[
        str | None, typer.Option(help="With --kube-job: whose nodes; the first by default.")
    ] = None,
    name: Annotated[str, typer.Option(help="With --kube-job: its name.")] = "accept",
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
    file: OutputOption = None,
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
        for line in how_to_run(spec, pods, comparison.read_by(pods), file=file and str(file)):
            output.note(line)
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
