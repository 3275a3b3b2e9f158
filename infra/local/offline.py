"""The emulated Nebius API of `soperator env --offline`: previews of any stack, without a cluster.

It takes any project, region and size: what an account would allow, only Nebius knows. Owns its
process and its address. It runs on a free port until `stop` or a restart of the machine.
"""

from __future__ import annotations

import os
import re
import sys
import time
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
    started = process.start(
        NAME,
        [sys.executable, "-m", "infra.local.nebius_api", *options],
        run_dir=_run(state),
        log=log,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), TOKEN_VARIABLE: token},
    )
    deadline = time.monotonic() + _START_S
    while (address := _address(log)) is None:
        if not started.alive or time.monotonic() > deadline:
            tail = "".join(log.read_text().splitlines(keepends=True)[-5:])
            raise LocalError(f"emulated Nebius API: did not start; {log} says:\n{tail}")
        time.sleep(0.05)
    return address


def endpoint(state: State) -> str:
    """Address of the running emulator."""
    running = process.find(NAME, _run(state))
    address = _address(_log(state)) if running is not None and running.alive else None
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


def _address(log: Path) -> str | None:
    try:
        found = _READY.findall(log.read_text())
    except FileNotFoundError:
        return None
    return found[-1] if found else None
