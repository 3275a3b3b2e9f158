"""`soperator ssh [COMMAND]`: the system's ssh client with the pinned host key."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra import files
from infra.cli import context
from infra.cli.context import IdentityOption, StackOption
from infra.state import DEFAULT_STACK
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs


def command(
    remote: Annotated[list[str] | None, typer.Argument(help="Command; a shell without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """Open a shell on the login node, or run one command."""
    outputs = context.read(stack)
    words = client_words(outputs, context.private_key(identity))
    os.execv(words[0], [*words, *(remote or [])])  # noqa: S606


def client_words(outputs: StackOutputs, key: Path, *, options: tuple[str, ...] = ()) -> list[str]:
    """The ssh client with the login node as its target; `options` stand before it."""
    client = shutil.which("ssh")
    if client is None:
        raise UserError(
            "ssh: not on PATH; install openssh-client, or use soperator status and logs"
        )
    arguments = [client, "-F", "/dev/null", "-i", str(key), "-p", str(outputs.ssh_port)]
    for name, value in login_options(outputs).items():
        arguments += ["-o", f"{name}={value}"]
    return [*arguments, *options, f"root@{outputs.login_ip}"]


def login_options(outputs: StackOutputs) -> dict[str, str]:
    """What makes ssh trust the pinned host key alone; the file that holds it is written."""
    known_hosts = context.state_root() / "ssh" / f"known_hosts_{outputs.stack}"
    kind, blob = outputs.login_host_key.split()[:2]
    # Whole or not at all: another command may read it now.
    files.write(
        known_hosts,
        f"[{outputs.login_ip}]:{outputs.ssh_port},{outputs.login_ip} {kind} {blob}\n",
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
