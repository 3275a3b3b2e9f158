"""Faults on purpose: errors of the Nebius API, slow operations, killed parts.

Owns what `soperator local fault` does. Faults of the API go through its own file of faults.
"""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Final

from infra.local import process
from infra.local.cloud import EMULATOR, Cloud, restart_emulator
from infra.local.errors import LocalError
from infra.local.nebius_api.errors import Faults

_API_FAULTS: Final[dict[str, dict[str, Any]]] = {
    "quota": {
        "code": "RESOURCE_EXHAUSTED",
        "message": "quota limit exceeded (planted fault)",
        "error": "QuotaFailure",
        "retry": "NOTHING",
    },
    "operation": {
        "code": "INTERNAL",
        "message": "operation failed (planted fault)",
        "when": "operation",
    },
    "lost-answer": {
        "code": "UNAVAILABLE",
        "message": "the answer was lost (planted fault)",
        "when": "after",
        "retry": "NOTHING",
    },
    "expired-token": {
        "code": "UNAUTHENTICATED",
        "message": "the token has expired (planted fault)",
    },
    "unavailable": {
        "code": "UNAVAILABLE",
        "message": "service unavailable (planted fault)",
        "retry": "CALL",
    },
}


def plant(cloud: Cloud, kind: str, method: str, times: int) -> None:
    """Make the next `times` calls of the methods that match fail."""
    try:
        re.compile(method)
    except re.error as error:
        raise LocalError(f"--method '{method}' is no regular expression: {error}") from error
    faults = _faults(cloud)
    faults.plant([*faults.pending(), {**_API_FAULTS[kind], "method": method, "times": times}])


def clear(cloud: Cloud) -> None:
    """Forget every planted fault and the latency."""
    _faults(cloud).plant([])
    restart_emulator(cloud, latency_s=None)


def set_latency(cloud: Cloud, seconds: float) -> None:
    """Make every operation take `seconds`."""
    _faults(cloud)  # a cloud that was never started is refused
    restart_emulator(cloud, latency_s=seconds)


def kill(cloud: Cloud, part: str) -> None:
    """End a part as kill -9 does."""
    found = process.find(part, cloud.state.run) if part else None
    if found is None or not found.alive:
        running = [p.name for p in process.all_processes(cloud.state.run) if p.alive]
        raise LocalError(f"part '{part}' does not run (running: {', '.join(running) or 'none'})")
    os.kill(found.pid, signal.SIGKILL)


def _faults(cloud: Cloud) -> Faults:
    folder = cloud.state.local / EMULATOR
    if not folder.is_dir():
        raise LocalError("the local cloud was never started; run `soperator local up`")
    return Faults(folder)
