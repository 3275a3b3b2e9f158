"""`soperator drain NODE...`: keeps new jobs off nodes, with the reason; `--undo` lets them on."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

_WAYS = "give --reason TEXT to drain, or --undo"


def command(
    nodes: Annotated[list[str], typer.Argument(help="Slurm nodes, such as worker-0.")],
    reason: Annotated[str, typer.Option(help="Why, as `sinfo -R` shows it.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Return once no job runs there.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take jobs on these nodes again.")] = False,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Keep new jobs off nodes until `--undo`; jobs that run there go on to their end."""
    if undo and (reason or wait):
        raise UserError("--undo excludes --reason and --wait; " + _WAYS)
    if not undo and not reason:
        raise UserError(f"drain: {_WAYS}")
    from infra.jobs.nodes import await_idle, drain, listed, resume

    named = ", ".join(nodes)
    with context.connect(context.read(stack), identity) as shell:
        if undo:
            resume(shell, nodes)
            output.note(f"{named}: take jobs again")
            return
        jobs = drain(shell, nodes, reason)
        if wait:
            await_idle(
                shell,
                nodes,
                say=lambda rest: output.note(f"{named}: waiting for {len(rest)}:\n{listed(rest)}"),
            )
            jobs = ()
        rest = f"still running there:\n{listed(jobs)}" if jobs else "no job runs there\n"
        output.note(f"{named}: no new job; {rest}".rstrip())
