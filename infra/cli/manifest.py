"""`soperator manifest NAME`: a declared job as Kubernetes objects, for pods without Slurm."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import StackOption
from infra.cli.output_file import OutputOption, put
from infra.state import DEFAULT_STACK
from stacks.errors import UserError


def command(
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
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a value of the recipe; repeatable."
        ),
    ] = None,
    file: OutputOption = None,
) -> None:
    """Print a declared job as a Kubernetes Job or PyTorchJob; reads the stack file only."""
    from infra.jobs.submit import job_args
    from infra.render import kube_job
    from infra.render.kube_job import training_pods

    spec = context.spec(stack)
    declared = next((each for each in spec.jobs if each.name == job), None)
    if declared is None:
        have = ", ".join(each.name for each in spec.jobs)
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
    objects = [kube_job.pytorch_job(pods)] if pytorchjob else kube_job.service_and_job(pods)
    put(kube_job.to_yaml(objects), file)
    for line in kube_job.how_to_run(spec, pods, file=None if file is None else str(file)):
        output.note(line)
