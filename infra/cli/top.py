"""`soperator top ID`: how busy the GPUs of a running job are, sampled inside it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.cli.output import Format
from infra.cli.verdict import NOT_RUN
from infra.state import DEFAULT_STACK

if TYPE_CHECKING:
    from infra.jobs.top import Screen

_CLEAR = "\x1b[2J\x1b[H"


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
        float, typer.Option(metavar="PERCENT", help="Utilisation that is enough, on every GPU.")
    ] = 80.0,
    memory_gate: Annotated[
        float, typer.Option(metavar="PERCENT", help="Memory in use that is enough, on every GPU.")
    ] = 50.0,
    identity: IdentityOption = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,
) -> None:
    """Watch utilisation, memory, power and InfiniBand of a job; ends with verdicts on its gates."""
    from infra.clients import slurm
    from infra.jobs import top

    outputs = context.read(stack)
    screen = top.Screen(gate_percent=gate, memory_gate_percent=memory_gate)
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
                "least_utilization_percent": (screen.each.least_busy or [None])[0],
                "memory_verdict": screen.memory_verdict,
                "least_memory_percent": screen.each.memory_percent,
                "nodes": [asdict(each) for each in screen.newest.values()],
            }
        )
    else:
        print(screen.verdict)
        print(screen.memory_verdict)
    passed = screen.passed
    raise typer.Exit(NOT_RUN if passed is None else 0 if passed else 1)


def _show(screen: Screen) -> None:
    if not screen.gpus:
        return
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    output.print_table(("NODE", "GPU", "BUSY", "MEMORY", "POWER"), screen.rows())
    print(f"0 {screen.sparkline()} 100 %", flush=True)
