"""The emulated Nebius API of `soperator env --offline`: previews of any stack, without a cluster.

It takes any project, region and size: what an account would allow, only Nebius knows. Owns its
process and its address. It runs on a free port until `stop` or a restart of the machine.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

from infra.local import engine, process
from infra.local.process import LocalError
from infra.providers.nebius.sdk import TOKEN_VARIABLE
from infra.state import CHECKOUT, State

NAME: Final = "nebius-api-offline"
_READY = re.compile(r"ready on (http://127\.0\.0\.1:\d+)")
_START_S: Final = 300
"""The first start compiles the API's descriptors: over a minute beside a load of 20."""


def start(state: State) -> str:
    """Start the emulator unless it runs; returns its address."""
    folder, log = state.offline / "nebius", _log(state)
    folder.mkdir(parents=True, exist_ok=True)
    running = process.find(NAME, _run(state))
    token = engine.token(state)
    if running is not None and running.environment.get(TOKEN_VARIABLE) != token:
        stop(state)  # of an earlier version, which took one that everybody knows
    if running is None or not running.alive:
        log.unlink(missing_ok=True)  # an old log names the port of a process that is gone
    options = ["--state", str(folder), "--port", "0", "--latency", "0", "--anywhere"]
    argv = [sys.executable, "-m", "infra.local.nebius_api", *options]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT), TOKEN_VARIABLE: token}
    process.serve(
        _run(state),
        {NAME: lambda: process.start(NAME, argv, run_dir=_run(state), log=log, env=env)},
        is_ready=lambda: _running(state) is not None,
        timeout_s=_START_S,
    )
    return endpoint(state)


def endpoint(state: State) -> str:
    """Address of the running emulator."""
    address = _running(state)
    if address is None:
        raise LocalError('emulated Nebius API: not running; run: eval "$(soperator env --offline)"')
    return address


def stop(state: State) -> bool:
    """Stop the emulator; True if it ran."""
    return process.stop(NAME, _run(state))


def _run(state: State) -> Path:
    return state.offline / "run"


def _log(state: State) -> Path:
    return state.offline / "nebius-api.log"


def _running(state: State) -> str | None:
    """Its address, once it is ready."""
    log = _log(state)
    if not (process.alive(NAME, _run(state)) and log.exists()):
        return None
    found = _READY.findall(log.read_text())
    return found[-1] if found else None
