"""Planted faults: `faults.json` in the state folder, read before each call.

A list of objects: `method` (regular expression on the full method name), `code` (gRPC code), and
optionally `times` (default 1, counted down in the file), `when` (`before` the call, `after` it
committed, so that the answer is lost, or inside the `operation`), `message`, `error` (ServiceError
code), `retry` (CALL, UNIT_OF_WORK, NOTHING, UNSPECIFIED), `details` (ServiceError details).
`soperator local fault` writes this file; anyone may.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from infra.local.nebius_api.errors import ApiError, Code

When = Literal["before", "after", "operation"]


class Faults:
    """The faults that are still to come."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults.json"

    def plant(self, faults: list[dict[str, Any]]) -> None:
        """Replaces all planted faults."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(faults, indent=1))
        new.replace(self._file)

    def pending(self) -> list[dict[str, Any]]:
        """Every planted fault with times left."""
        try:
            faults = json.loads(self._file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return [fault for fault in faults if fault.get("times", 1) > 0]

    def take(self, method: str, when: When) -> ApiError | None:
        """The fault planted for this moment of the call, counted down; None mostly."""
        faults = self.pending()
        for fault in faults:
            if fault.get("when", "before") == when and re.search(fault["method"], method):
                fault["times"] = fault.get("times", 1) - 1
                self.plant(faults)
                return ApiError(
                    Code[fault["code"]],
                    fault.get("message", f"injected {fault['code']}"),
                    fault.get("error", "Injected"),
                    retry=fault.get("retry", "UNSPECIFIED"),
                    **fault.get("details", {}),
                )
        return None
