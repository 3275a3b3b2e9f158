"""Troubles on purpose that are no refusal: long operations and events of resources.

`troubles.json` in the state folder, read when it matters; anyone may write it:
    {"operations": [{"method": RE, "seconds": 60}],
     "events": [{"kind": RE, "level": "ERROR", "code": "...", "message": "...", "error": {...}}]}
`method` is searched in the full method name, `kind` in an id such as mk8snodegroup-e00abc; `error`
is a ServiceError as JSON. Events are shown while the resource is being changed. Refusals, slow and
lost answers are in faults.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from infra import whole_file
from infra.local.nebius_api.errors import ApiError, Code


class Troubles:
    """What is planted now."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "troubles.json"

    def plant(self, **troubles: list[dict[str, Any]]) -> None:
        """Replaces all that is planted."""
        whole_file.write(self._file, json.dumps(troubles, indent=1))

    def operation_s(self, method: str) -> float:
        """Seconds that an operation of this method takes beside the usual ones."""
        found = [one for one in self._planted("operations") if re.search(one["method"], method)]
        return max((float(one["seconds"]) for one in found), default=0.0)

    def events(self, resource_id: str) -> list[dict[str, Any]]:
        """Events planted on a resource, in their order."""
        return [one for one in self._planted("events") if re.search(one["kind"], resource_id)]

    def _planted(self, section: str) -> list[dict[str, Any]]:
        try:
            return json.loads(self._file.read_text()).get(section, [])
        except (FileNotFoundError, json.JSONDecodeError):
            return []


def as_error(event: dict[str, Any]) -> ApiError | None:
    """The refusal that a planted event carries, or None."""
    details = event.get("error")
    if not details:
        return None
    return ApiError(Code.RESOURCE_EXHAUSTED, event["message"], event["code"], **details)
