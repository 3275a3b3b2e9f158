"""`soperator compare-runs`: the same throughput job on bare metal, in Slurm and in Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import StackOption
from infra.cli.output import Format
from infra.cli.output_file import OutputOption, put
from infra.cli.verdict import comparing, exit_code
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from stacks.node_spec import WorkerSpec
    from stacks.spec import StackSpec


def command(
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
        _kube_job(context.spec(stack), nodeset, image, nodes, name, file)
        return
    from infra.reports.acceptance import comparison
    from infra.reports.acceptance.comparison import compare, read_run

    with comparing():
        if files is None or len(files) != 2:
            raise UserError(
                "compare-runs: give two result files, the one that counts as 100 % first"
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


def _kube_job(
    spec: StackSpec,
    nodeset: str | None,
    image: str | None,
    nodes: int,
    name: str,
    file: Path | None,
) -> None:
    from infra.render.kube_job import to_yaml
    from infra.reports.acceptance import comparison

    if image is None:
        raise UserError("compare-runs: --kube-job needs --image, with this code and torch in it")
    worker = _worker(spec, nodeset)
    job = comparison.KubeJob(name=name, image=image, nodes=nodes)
    put(to_yaml(comparison.render(spec, worker, job)), file)
    lines = comparison.how_to_run(spec, worker, job, file=None if file is None else str(file))
    for line in lines:
        output.note(line)


def _worker(spec: StackSpec, nodeset: str | None) -> WorkerSpec:
    for worker in spec.nodes.workers:
        if nodeset in (None, worker.name):
            return worker
    have = ", ".join(worker.name for worker in spec.nodes.workers)
    raise UserError(f"{spec.name}: nodes.workers: {nodeset!r} is not a nodeset (has: {have})")
