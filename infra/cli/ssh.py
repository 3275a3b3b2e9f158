"""`soperator ssh [COMMAND]`: the system's ssh client with the pinned host key."""

from __future__ import annotations

import os
import shutil
from typing import Annotated

import typer

from infra.cli import context
from infra.cli.context import DEFAULT_STACK, IdentityOption, StackOption
from infra.cli.errors import CliError


def command(
    remote: Annotated[list[str] | None, typer.Argument(help="Command; a shell without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Open a shell on the login node, or run one command."""
    outputs = context.read(stack)
    key = context.private_key(identity)
    client = shutil.which("ssh")
    if client is None:
        raise CliError("ssh: not on PATH; install openssh-client, or use soperator status and logs")
    known_hosts = context.state_root() / "ssh" / f"known_hosts_{stack}"
    known_hosts.parent.mkdir(parents=True, exist_ok=True)
    kind, blob = outputs.login_host_key.split()[:2]
    known_hosts.write_text(
        f"[{outputs.login_ip}]:{outputs.ssh_port},{outputs.login_ip} {kind} {blob}\n",
        encoding="ascii",
    )
    options = {
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": str(known_hosts),
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "PasswordAuthentication": "no",
        "LogLevel": "ERROR",
    }
    arguments = [client, "-F", "/dev/null", "-i", str(key), "-p", str(outputs.ssh_port)]
    for name, value in options.items():
        arguments += ["-o", f"{name}={value}"]
    os.execv(client, [*arguments, f"root@{outputs.login_ip}", *(remote or [])])  # noqa: S606
