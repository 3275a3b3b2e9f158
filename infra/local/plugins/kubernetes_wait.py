"""What a resource waits for: the annotation `pulumi.com/waitFor`.

Understands `jsonpath={.status.phase}=Available`, `condition=Ready`, and a JSON list of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infra.plugins.provider import ProviderError

WAIT_FOR: Final = "pulumi.com/waitFor"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
TIMEOUT_SECONDS: Final = "pulumi.com/timeoutSeconds"
DEFAULT_TIMEOUT_S: Final = 600.0
_JSONPATH = re.compile(r"""jsonpath=\{(?P<path>\.[^}]+)\}(?:=(?P<value>.*))?""")
_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z0-9_-]+)|\[(?P<index>\d+)\]|\[\?\(@\.(?P<name>\w+)==["'](?P<is>[^"']*)["']\)\]"""
)


@dataclass(frozen=True, slots=True)
class Wait:
    """One condition on a live object and its words for a message."""

    what: str
    is_met: Callable[[dict[str, Any]], bool]


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
