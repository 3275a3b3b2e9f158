"""The environment in which plain pulumi works, and what it needs to exist; tokens for kubectl.

Owns the choice of backend, endpoint and engine for the three places a stack can run: the embedded
cloud (default), an emulator without a cluster (`--offline`, for previews), Nebius (`--cloud`).
Never writes a tracked file.
    eval "$(soperator env [--offline | --cloud])"
"""

from __future__ import annotations

import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from infra.cli.context import opt
from infra.cli.output import note
from infra.clients.passphrase import PUBLIC
from infra.local import engine, offline
from infra.local.engine import describe_plugins
from infra.providers.nebius.sdk import exec_credential
from infra.state import CHECKOUT, Cache, Ports, State
from stacks.errors import UserError


class Target(StrEnum):
    """Where stacks run."""

    LOCAL = "local"
    OFFLINE = "offline"
    CLOUD = "cloud"


def env(
    offline: Annotated[bool, opt("Preview any stack against an emulator of its own.")] = False,
    cloud: Annotated[bool, opt("Use Nebius itself, with your credentials.")] = False,
) -> None:
    """Print the environment that plain pulumi needs, for eval."""
    if offline and cloud:
        raise UserError("--offline and --cloud exclude each other; give one of them")
    target = Target.OFFLINE if offline else Target.CLOUD if cloud else Target.LOCAL
    prepare(target)
    for line in describe_plugins():
        print(line, file=sys.stderr)
    for name, value in environment(target).items():
        print(f"export {name}={shlex.quote(value)}")
    if target is Target.CLOUD:
        print("unset SOPERATOR_NEBIUS_ENDPOINT SOPERATOR_CRDS")
    if sys.stdout.isatty():
        print('# run: eval "$(soperator env)"', file=sys.stderr)


def environment(target: Target | None = None) -> dict[str, str]:
    """Variables to add to the environment of pulumi and of whatever reads a stack.

    Without a target, a backend that the shell already chose stays; else the embedded cloud.
    """
    if target is None:
        target = Target.CLOUD if os.environ.get("PULUMI_BACKEND_URL") else Target.LOCAL
    state, cache = State.from_environ(), Cache.from_environ()
    backend = state.offline / "pulumi" if target is Target.OFFLINE else state.pulumi
    variables = {
        "SOPERATOR_STATE": str(state.root),
        "SOPERATOR_CACHE": str(cache.root),
        "PATH": engine.search_path(os.environ.get("PATH", os.defpath), cache, state.pulumi_home),
        "PULUMI_HOME": str(state.pulumi_home),
        "PULUMI_BACKEND_URL": f"file://{backend}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(state.passphrase),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        **engine.proxy_exceptions(os.environ),
    }
    if target is Target.CLOUD:
        if engine.passphrase(state) == PUBLIC:  # for a real cluster the user brings one
            del variables["PULUMI_CONFIG_PASSPHRASE_FILE"]
        owned = ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE_FILE", "PULUMI_HOME")
        return {n: v for n, v in variables.items() if n not in owned or not os.environ.get(n)}
    if "PULUMI_CONFIG_PASSPHRASE" in os.environ:
        # The engine prefers this variable, even empty, to the file; it would not open the state.
        variables["PULUMI_CONFIG_PASSPHRASE"] = engine.passphrase(state)
    if target is Target.OFFLINE:
        endpoint = offline.endpoint(state)
    else:
        endpoint = f"http://127.0.0.1:{Ports.from_environ().nebius_api}"
    return {
        **variables,
        "SOPERATOR_NEBIUS_ENDPOINT": endpoint,
        "SOPERATOR_CRDS": str(CHECKOUT / "infra" / "local" / "kube" / "crds"),
        "SOPERATOR_SSH_PUBLIC_KEY_FILE": str(state.ssh_public_key),
        "NEBIUS_IAM_TOKEN": engine.token(state),
    }


def prepare(target: Target = Target.LOCAL) -> None:
    """Make what `environment` names: keys, plugins, the backend with its stacks, the emulator."""
    state = State.from_environ()
    engine.make_folders(state)
    if target is not Target.CLOUD:
        engine.make_passphrase(state)
        engine.make_token(state)
    engine.make_ssh_key(state)
    engine.link_plugins(state.pulumi_home)
    if target is Target.CLOUD:
        return
    if target is Target.OFFLINE:
        offline.start(state)
    variables = {**os.environ, **environment(target)}
    backend = Path(variables["PULUMI_BACKEND_URL"].removeprefix("file://"))
    for line in engine.init_stacks(backend, variables):
        note(line)


def kube_token() -> None:
    """Print a Kubernetes exec credential."""
    print(exec_credential())
