"""Planted faults: `faults.json` in the state folder, read before each call.

A list of objects: `method` (regular expression on the full method name), `code` (gRPC code, KILL,
which ends the process as kill -9 does, or SLOW, which holds the call back for `seconds` or until
all faults are removed), and optionally `skip` (matching calls that pass first, default 0), `times`
(default 1; both are counted down in the file), `when` (`before` the call, `after` it committed, so
that the answer is lost, or inside the `operation`), `message`, `error` (ServiceError code), `retry`
(CALL, UNIT_OF_WORK, NOTHING, UNSPECIFIED), `details` (ServiceError details).
`soperator local fault` writes this file; anyone may.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from infra import whole_file
from infra.local.nebius_api.errors import ApiError, Code

When = Literal["before", "after", "operation"]
_KILL: Final = "KILL"
_SLOW: Final = "SLOW"
_NONE: Final = "[]"
_POLL_S: Final = 0.02


class Faults:
    """The faults that are still to come."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults.json"

    def plant(self, faults: list[dict[str, Any]]) -> None:
        """Replaces all planted faults."""
        whole_file.write(self._file, json.dumps(faults, indent=1))

    def pending(self) -> list[dict[str, Any]]:
        """Every planted fault with times left."""
        try:
            faults = json.loads(self._file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return [fault for fault in faults if fault.get("times", 1) > 0]

    def take(
        self, method: str, when: When, commit: Callable[[], None] = lambda: None
    ) -> ApiError | None:
        """The fault planted for this moment of the call, counted down; None mostly.

        `commit` makes permanent what the call changed so far, before a KILL.
        """
        fault = self._next(method, when, slow=False)
        if fault is None:
            return None
        if fault["code"] == _KILL:
            commit()
            os.kill(os.getpid(), signal.SIGKILL)
        return ApiError(
            Code[fault["code"]],
            fault.get("message", f"injected {fault['code']}"),
            fault.get("error", "Injected"),
            retry=fault.get("retry", "UNSPECIFIED"),
            **fault.get("details", {}),
        )

    async def hold(self, method: str, when: When) -> None:
        """Holds this moment of the call back, where a fault says so and until it is removed."""
        fault = self._next(method, when, slow=True)
        if fault is None:
            return
        until = time.monotonic() + fault["seconds"]
        while time.monotonic() < until and self._file.read_text() != _NONE:
            await asyncio.sleep(_POLL_S)

    def _next(self, method: str, when: When, *, slow: bool) -> dict[str, Any] | None:
        faults = self.pending()
        for fault in faults:
            if (fault["code"] == _SLOW) is not slow or fault.get("when", "before") != when:
                continue
            if not re.search(fault["method"], method):
                continue
            if fault.get("skip", 0) > 0:
                fault["skip"] -= 1
                self.plant(faults)
                continue
            fault["times"] = fault.get("times", 1) - 1
            self.plant(faults)
            return fault
        return None
