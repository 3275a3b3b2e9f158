"""Objects of Kubernetes in one line each, for messages."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def name_of(item: Object) -> str:
    """The object's name."""
    return item["metadata"]["name"]


def describe(target: Object) -> str:
    """Kind and name for a person: `NodeSet soperator/worker`."""
    metadata = target.get("metadata", {})
    place = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{target['kind']} {place}{metadata.get('name', '?')}"


def summary(live: Object | None) -> str:
    """What the status of an object says, in one line."""
    if live is None:
        return "it does not exist"
    status = live.get("status", {})
    conditions = [
        f"{c['type']}={c['status']}" + (f" ({c['message']})" if c.get("message") else "")
        for c in (status.get("conditions") or [])
        if c.get("status") != "True"
    ]
    phase = status.get("phase")
    parts = [f"phase {phase!r}" if phase else "no phase yet", *conditions]
    return "; ".join(parts)


def finalizers(live: Object) -> list[str]:
    """What still holds an object, and a namespace."""
    metadata = live["metadata"].get("finalizers", [])
    return metadata + live.get("spec", {}).get("finalizers", [])
