"""`soperator tensorboard [JOB]`: TensorBoard beside the event files, and a tunnel to it."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Annotated

import typer

from infra.cli import context, interrupts, output
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError


def command(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="Id of a training job; all without it.")
    ] = None,
    stack: StackOption = DEFAULT_STACK,
    hours: Annotated[float, typer.Option(min=0.1, help="It ends then at the latest.")] = 8.0,
    identity: IdentityOption = None,
) -> None:
    """Show loss curves in TensorBoard; it runs on the login node, takes no GPU, ends with you."""
    from infra.clients import slurm
    from infra.clients.ssh import Tunnel
    from infra.operate import sessions
    from infra.operate.sessions import Guard

    if not math.isfinite(hours):
        raise UserError(f"--hours {hours:g}: not a time; give hours such as 8 or 0.5")
    spec = context.spec(stack)
    outputs = context.read(stack)
    folder = f"{outputs.places['logs']}/tensorboard"
    if job_id is not None:
        folder = f"{folder}/{slurm.job_id(job_id)}"
    closing = ExitStack()
    with interrupts.as_interrupt():
        try:
            connection = closing.enter_context(context.connect(outputs, identity))
            sessions.check_folder(connection, folder, job_id)
            sessions.check_installed(connection, spec, outputs, "tensorboard")
            start = sessions.tensorboard(spec, folder, hours)
            guard = Guard(connection, start=start, end="kill -- -$!")
            closing.callback(guard.close)
            there = sessions.wait_for(guard, sessions.TENSORBOARD_READY, say=lambda _: None)
            sessions.wait_until_open(connection, there)
            login = outputs.endpoint(context.private_key(identity))
            tunnel = Tunnel(login, there.host, there.port, say=output.note)
            closing.callback(tunnel.close)
            print(f"http://127.0.0.1:{tunnel.port}/", flush=True)
            output.note(f"{folder} on the login node; Ctrl-C closes it and the tunnel")
            sessions.wait_for_end(guard)
            raise UserError("TensorBoard ended by itself, or the connection was lost: run it again")
        finally:
            with interrupts.ignored():
                closing.close()
