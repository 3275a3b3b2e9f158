"""`soperator top ID`: how busy the GPUs of a running job are, sampled inside it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.output import Format

if TYPE_CHECKING:
    from infra.jobs.top import Screen

_CLEAR = "\x1b[2J\x1b[H"
_NOT_RUN = 69


def command(
    job_id: Annotated[str, typer.Argument(help="Id of a running job.")],
    stack: StackOption = DEFAULT_STACK,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.2, help="Time between samples.")
    ] = 2.0,
    samples: Annotated[
        int, typer.Option(min=0, help="End after so many samples a node; 0: with the job.")
    ] = 0,
    gate: Annotated[
        float, typer.Option(metavar="PERCENT", help="Mean utilisation that is enough.")
    ] = 80.0,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Watch utilisation, memory, power and InfiniBand of a job; ends with a verdict on the gate."""
    from infra.jobs import slurm, top

    outputs = context.read(stack)
    screen = top.Screen(gate_percent=gate)
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        try:
            for sample in top.watch(
                connection, outputs.code_path, job, every_s=every, count=samples
            ):
                screen.take(sample)
                if format is Format.TABLE:
                    _show(screen)
        except KeyboardInterrupt:
            output.note("")
    if format is Format.JSON:
        output.print_json(
            {
                "verdict": screen.verdict,
                "mean_utilization_percent": screen.mean_percent,
                "nodes": [asdict(each) for each in screen.newest.values()],
            }
        )
    else:
        print(screen.verdict)
    if screen.mean_percent is None:
        raise typer.Exit(_NOT_RUN)
    raise typer.Exit(0 if screen.mean_percent > gate else 1)


def _show(screen: Screen) -> None:
    if not screen.gpus:
        return
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    output.print_table(("NODE", "GPU", "BUSY", "MEMORY", "POWER"), screen.rows())
    print(f"0 {screen.sparkline()} 100 %", flush=True)
