"""Custom resources on one API server: apply_crds(client, crds), checked as a whole before a change.

Helm installs what lies in crds/ once and never upgrades it; server-side apply does both. Nothing is
ever deleted: with a definition go all objects of its kind.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from infra.kube.client import KubeClient

Object = dict[str, Any]
_READY_S: Final = 60.0


class LostVersionError(Exception):
    """Definitions that no longer have a version in which objects are stored."""


def apply_crds(
    client: KubeClient,
    crds: Iterable[Object],
    *,
    cancelled: threading.Event | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> None:
    """Applies all of them and returns once their kinds are served; refuses before the first."""
    wanted = list(crds)
    live = {crd["metadata"]["name"]: client.get(crd) for crd in wanted}
    if problems := [line for crd in wanted for line in _lost(live[crd["metadata"]["name"]], crd)]:
        raise LostVersionError("; ".join(problems))
    for crd in wanted:
        client.apply(crd)
        name = crd["metadata"]["name"]
        say(f"{name}: {'upgraded' if live[name] is not None else 'made'}")
    for crd in wanted:
        client.wait_for(
            crd, "the kind to be served", _is_served, timeout_s=_READY_S, cancelled=cancelled
        )
    client.forget_kinds()


def missing(client: KubeClient, names: Iterable[str]) -> list[str]:
    """Which of the definitions the API server does not have."""
    return [name for name in names if client.get(_named(name)) is None]


def digests(crds: Iterable[Object]) -> Mapping[str, str]:
    """Name -> what stands for the definition's content."""
    return {
        crd["metadata"]["name"]: hashlib.sha256(
            json.dumps(crd["spec"], sort_keys=True, default=str).encode()
        ).hexdigest()[:16]
        for crd in crds
    }


def _lost(live: Object | None, crd: Object) -> Iterable[str]:
    """Versions that the API server has stored objects in and the new definition has no more."""
    if live is None:
        return
    stored = live.get("status", {}).get("storedVersions", [])
    lost = set(stored) - {version["name"] for version in crd["spec"]["versions"]}
    if lost:
        name = crd["metadata"]["name"]
        yield (
            f"{name}: objects are stored as {', '.join(sorted(lost))}, which the new definition "
            "does not have; write them anew in a version of both, take it out of "
            "status.storedVersions, then run the command again"
        )


def _named(name: str) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
    }


def _is_served(crd: Object) -> bool:
    conditions = crd.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)
