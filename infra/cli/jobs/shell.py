"""Ways in: `ssh` to the login node, `shell` to GPUs, `tensorboard` through a tunnel."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from cost.report.layout import small_usd_text
from infra import files
from infra.cli import context, interrupts, output
from infra.cli.context import IdentityOption, StackOption, arg, opt
from infra.clients import slurm
from infra.clients.pulumi import StackOutputs
from infra.jobs.ledger import admit_session, check_together, open_ledger
from infra.operate import sessions
from infra.operate.sessions import SILENCE_S, Ask, Guard, ask, ssh_config
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.spec import StackSpec

_POLL_S: Final = 0.5


def ssh(
    remote: Annotated[list[str] | None, arg("Command; a shell without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
    root: Annotated[bool, opt("As root, who drains and installs.")] = False,
) -> None:
    """Open a shell on the login node as the key's user, or run one command."""
    outputs = context.read(stack) if root else context.caller(stack, identity)
    words = client_words(outputs, context.key_of(outputs, identity))
    os.execv(words[0], [*words, *(remote or [])])  # noqa: S606


def client_words(outputs: StackOutputs, key: Path, *, options: tuple[str, ...] = ()) -> list[str]:
    """The ssh client with the login node as its target; `options` stand before it."""
    client = shutil.which("ssh")
    if client is None:
        raise UserError(
            f"ssh: not on PATH; install openssh-client, or use soperator status -s {outputs.stack} "
            "and logs"
        )
    arguments = [client, "-F", "/dev/null", "-i", str(key), "-p", str(outputs.ssh_port)]
    for name, value in login_options(outputs).items():
        arguments += ["-o", f"{name}={value}"]
    return [*arguments, *options, f"{outputs.user}@{outputs.login_ip}"]


def login_options(outputs: StackOutputs) -> dict[str, str]:
    """What makes ssh trust the pinned host key alone; the file that holds it is written."""
    known_hosts = context.state_root() / "ssh" / f"known_hosts_{outputs.stack}"
    kind, blob = outputs.login_host_key.split()[:2]
    # Whole or not at all: another command may read it now.
    files.write(
        known_hosts, f"[{outputs.login_ip}]:{outputs.ssh_port},{outputs.login_ip} {kind} {blob}\n"
    )
    return {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "PasswordAuthentication": "no",
        "LogLevel": "ERROR",
    }


def shell(
    stack: StackOption = DEFAULT_STACK,
    gpus: Annotated[int | None, opt("GPUs; one where the partition has any.", min=0)] = None,
    cpus: Annotated[int | None, opt("CPUs; the share that goes with the GPUs.", min=1)] = None,
    partition: Annotated[
        str | None, opt("Partition; Slurm's default one.", "--partition", "-p")
    ] = None,
    hours: Annotated[float, opt("Time limit; Slurm ends it then.")] = 2.0,
    jupyter: Annotated[bool, opt("Jupyter Lab there, with a tunnel to it.")] = False,
    vscode: Annotated[bool, opt("Hold the node and write an ssh config that leads in.")] = False,
    wait: Annotated[bool, opt("Wait in the queue where nothing is free.")] = False,
    identity: IdentityOption = None,
) -> None:
    """Open a terminal with GPUs on a worker; it ends with you, and says before what it costs."""
    if jupyter and vscode:
        raise UserError("--jupyter --vscode: one session is one of them")
    if not (jupyter or vscode or sys.stdin.isatty()):
        raise UserError(
            "standard input is no terminal: run this in one, or take --jupyter or --vscode; a "
            f"command without one: soperator ssh -s {stack} 'srun ...'"
        )
    spec = context.spec(stack)
    ledger = open_ledger(spec, context.state_root(), output.note)
    asked = ask(ledger.rates, gpus=gpus, cpus=cpus, partition=partition, hours=hours)
    outputs = context.caller(stack, identity)
    code = 0
    with interrupts.closed_whole() as closing:
        connection = closing.enter_context(context.connect(outputs, identity))
        if jupyter:
            sessions.check_installed(connection, spec, outputs, "jupyterlab")
        cluster, what = outputs.login_host_key, f"a shell of {hours:g} hours"
        check_together(ledger, connection, cluster, what, asked.most_usd)
        num_waiting = sessions.num_waiting(connection, asked, waits=wait)  # or a refusal
        _say(asked, num_waiting)
        is_held = spec.budget is not None and asked.most_usd is not None
        if is_held:
            asked = replace(asked, options=(*asked.options, "--hold"))

        def admit() -> bool:
            return not is_held or admit_session(ledger, connection, asked, cluster)

        token = secrets.token_urlsafe(24) if jupyter else ""
        start = sessions.held(asked) if vscode else ""
        if jupyter:
            start = sessions.jupyter(asked, spec, outputs)
        guard = Guard(connection, start=start, end=sessions.end(asked), secret=token)
        closing.callback(_end, guard, asked, stack)
        if jupyter:
            there = sessions.wait_for(guard, sessions.JUPYTER_READY, say=output.note, admit=admit)
            inside = replace(there, host="127.0.0.1")
            tunnel = context.tunnel(closing, outputs, identity, inside, node=there.host)
            tunnel.wait_until_open()
            print(f"http://127.0.0.1:{tunnel.port}/lab?token={token}", flush=True)
            output.note("Ctrl-C closes Jupyter, the tunnel and the session")
            sessions.wait_for_end(guard)
            raise UserError(
                "the session ended: its time limit was reached, or Jupyter was shut down"
            )
        if vscode:
            _vscode(guard, outputs, identity, admit)
        else:
            code = _terminal(asked, spec, outputs, identity, admit)
    raise typer.Exit(code)


def _say(asked: Ask, num_waiting: int) -> None:
    price, most = asked.usd_per_hour, asked.most_usd
    cost = (
        "its price is not known"
        if price is None or most is None
        else f"{small_usd_text(price)} an hour, at most {small_usd_text(most)}"
    )
    output.note(
        f"{asked.name}: {asked.gpus} GPUs, {asked.cpus} CPUs, {asked.memory_mib / 1024:,.0f} GiB "
        f"in {asked.partition} for at most {asked.hours:.3g} h: {cost}; {num_waiting} jobs wait"
    )


def _end(guard: Guard, asked: Ask, stack: str) -> None:
    if guard.close():
        output.note(f"{asked.name} is told to end")
        return
    output.note(
        f"{asked.name}: the login node did not say that it ended; it ends by itself within "
        f"{SILENCE_S} s, or now: soperator ssh -s {stack} scancel --name={asked.name}"
    )


def _terminal(
    asked: Ask,
    spec: StackSpec,
    outputs: StackOutputs,
    identity: Path | None,
    admit: Callable[[], bool],
) -> int:
    """The terminal until it is left; its exit status."""
    inside = f"{sessions.environment(spec, outputs)}; exec bash -i"
    remote = asked.srun("bash", "-c", inside, options=["--pty"])
    options = ("-t", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=3")
    words = client_words(outputs, context.key_of(outputs, identity), options=options)
    with subprocess.Popen([*words, remote]) as session:
        try:
            while session.poll() is None and not admit():
                time.sleep(_POLL_S)
            return session.wait()
        except BaseException:
            session.terminate()  # one that stays held would be waited for
            raise


def _vscode(
    guard: Guard, outputs: StackOutputs, identity: Path | None, admit: Callable[[], bool]
) -> None:
    there = sessions.wait_for(guard, None, say=output.note, admit=admit)
    folder = context.state_root() / "ssh"
    key = context.key_of(outputs, identity).absolute()
    text = ssh_config(outputs, there.host, key, login_options(outputs))
    path = folder / f"config_{outputs.stack}"
    # Every ssh of the user reads it once it is included: never half of it.
    files.write(path, text)
    print(text, flush=True)
    output.note(
        f"Put this line first into ~/.ssh/config once: Include {path.absolute()}; then in VS Code: "
        f"Remote-SSH: Connect to Host: soperator-{outputs.stack}-shell. Ctrl-C ends the session"
    )
    sessions.wait_for_end(guard)
    raise UserError("the session ended: its time limit was reached")


def tensorboard(
    job_id: Annotated[str | None, arg("Id of a training job; all without it.", "[JOB]")] = None,
    stack: StackOption = DEFAULT_STACK,
    hours: Annotated[float, opt("It ends then at the latest.", min=0.1)] = 8.0,
    identity: IdentityOption = None,
) -> None:
    """Show loss curves in TensorBoard; it runs on the login node, takes no GPU, ends with you."""
    if not math.isfinite(hours):
        raise UserError(f"--hours {hours:g}: not a time; give hours such as 8 or 0.5")
    spec = context.spec(stack)
    outputs = context.caller(stack, identity)
    folder = f"{outputs.places['logs']}/tensorboard"
    if job_id is not None:
        folder = f"{folder}/{slurm.job_id(job_id)}"
    with interrupts.closed_whole() as closing:
        connection = closing.enter_context(context.connect(outputs, identity))
        sessions.check_folder(connection, folder, job_id)
        sessions.check_installed(connection, spec, outputs, "tensorboard")
        start = sessions.tensorboard(spec, folder, hours)
        secret = secrets.token_urlsafe(24)
        guard = Guard(connection, start=start, end="kill -- -$!", secret=secret)
        closing.callback(guard.close)
        there = sessions.wait_for(guard, sessions.TENSORBOARD_READY, say=lambda _: None)
        tunnel = context.tunnel(closing, outputs, identity, there)
        tunnel.wait_until_open()
        print(f"http://127.0.0.1:{tunnel.port}/{secret}/", flush=True)
        output.note(f"{folder} on the login node; Ctrl-C closes it and the tunnel")
        sessions.wait_for_end(guard)
        raise UserError("TensorBoard ended by itself, or the connection was lost: run it again")
