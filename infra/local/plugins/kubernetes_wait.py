"""What a resource waits for: the annotation `pulumi.com/waitFor` and a release's own kinds.

Understands `jsonpath={.status.phase}=Available`, `condition=Ready`, and a JSON list of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infra.local.ports import PORT_IN_USE
from infra.plugins.provider import ProviderError

WAIT_FOR: Final = "pulumi.com/waitFor"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
TIMEOUT_SECONDS: Final = "pulumi.com/timeoutSeconds"
DEFAULT_TIMEOUT_S: Final = 600.0
_JSONPATH = re.compile(r"""jsonpath=\{(?P<path>\.[^}]+)\}(?:=(?P<value>.*))?""")
_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z0-9_-]+)|\[(?P<index>\d+)\]|\[\?\(@\.(?P<name>\w+)==["'](?P<is>[^"']*)["']\)\]"""
)
_READY_PHASES: Final = {"SlurmCluster": "Available", "NodeSet": "Ready"}


@dataclass(frozen=True, slots=True)
class Wait:
    """One condition on a live object and its words for a message."""

    what: str
    is_met: Callable[[dict[str, Any]], bool]
    stuck: Callable[[dict[str, Any]], str] = lambda _live: ""
    """Why waiting is of no use; empty while it is."""


def waits_of(inputs: dict[str, Any]) -> list[Wait]:
    """The waits that a resource's annotations ask for."""
    annotations = inputs.get("metadata", {}).get("annotations") or {}
    text = annotations.get(WAIT_FOR)
    if not text or annotations.get(SKIP_AWAIT) == "true":
        return []
    expressions = json.loads(text) if text.lstrip().startswith("[") else [text]
    return [_parse(expression) for expression in expressions]


def timeout_of(inputs: dict[str, Any]) -> float:
    """How long to wait for a resource, in seconds."""
    annotations = inputs.get("metadata", {}).get("annotations") or {}
    return float(annotations.get(TIMEOUT_SECONDS, DEFAULT_TIMEOUT_S))


def readiness_of(target: dict[str, Any]) -> Wait | None:
    """What readiness of a Soperator object means; None for kinds that are ready at once."""
    phase = _READY_PHASES.get(target["kind"])
    if target.get("spec", {}).get("maintenance", "none").startswith("downscale"):
        return None  # a stopped cluster never gets there
    if phase is None or not target["apiVersion"].startswith("slurm.nebius.ai/"):
        return None

    def is_met(live: dict[str, Any]) -> bool:
        status = live.get("status", {})
        return status.get("phase") == phase and not _is_stale(live)

    return Wait(f"phase {phase}", is_met, _port_in_use)


def _port_in_use(live: dict[str, Any]) -> str:
    """What the object says of a stranger on one of its ports."""
    for condition in live.get("status", {}).get("conditions") or []:
        if condition.get("reason") == PORT_IN_USE:
            return condition.get("message", "")
    return ""


def _is_stale(live: dict[str, Any]) -> bool:
    """Whether the status still speaks of an earlier spec, where it says which one."""
    status = live.get("status", {})
    observed = [c.get("observedGeneration") for c in (status.get("conditions") or [])]
    observed.append(status.get("observedGeneration"))
    known = [generation for generation in observed if generation]
    return bool(known) and max(known) < live["metadata"].get("generation", 0)


def _parse(expression: str) -> Wait:
    if expression.startswith("condition="):
        name, _, value = expression.removeprefix("condition=").partition("=")
        wanted = value or "True"
        path = f'.status.conditions[?(@.type=="{name}")].status'
        return Wait(expression, lambda live: _lookup(live, path) == wanted)
    match = _JSONPATH.fullmatch(expression)
    if match is None:
        raise ProviderError(
            f"metadata.annotations.{WAIT_FOR}: {expression!r} is not understood; "
            "write jsonpath={.status.phase}=VALUE or condition=NAME"
        )
    path, value = match["path"], match["value"]
    if value is None:
        return Wait(expression, lambda live: _lookup(live, path) is not None)
    return Wait(expression, lambda live: _text(_lookup(live, path)) == value)


def _lookup(live: Any, path: str) -> Any:
    position, found = 0, live
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise ProviderError(f"jsonpath {{{path}}}: is not understood from {path[position:]!r}")
        position = step.end()
        found = _descend(found, step)
        if found is None:
            return None
    return found


def _descend(found: Any, step: re.Match[str]) -> Any:
    if step["key"] is not None:
        return found.get(step["key"]) if isinstance(found, dict) else None
    if not isinstance(found, list):
        return None
    if step["index"] is not None:
        index = int(step["index"])
        return found[index] if index < len(found) else None
    return next((item for item in found if item.get(step["name"]) == step["is"]), None)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)
