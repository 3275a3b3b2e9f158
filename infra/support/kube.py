"""Parts of a bundle that the Kubernetes API has: events, pods, nodes, custom resources by status.

Owns what is read of them. Never reads a Secret or a ConfigMap: their content is not asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

from infra.kube.client import KubeClient, Object
from infra.render.values.observability import LOGS, MONITORING
from infra.support.part import Part
from stacks.spec import StackSpec

_KEPT: Final = (
    "name",
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "labels",
)
_SLURM: Final = "slurm.nebius.ai"
_STATUS: Final = (
    ("kube/nodes.json", "nodes", "v1", "Node"),
    ("kube/claims.json", "claims of disks", "v1", "PersistentVolumeClaim"),
    ("kube/clusters.json", "Slurm clusters", f"{_SLURM}/v1", "SlurmCluster"),
    ("kube/nodesets.json", "nodesets", f"{_SLURM}/v1alpha1", "NodeSet"),
    ("kube/checks.json", "active checks", f"{_SLURM}/v1alpha1", "ActiveCheck"),
)


def parts_of_kube(spec: Callable[[], StackSpec], client: Callable[[], KubeClient]) -> list[Part]:
    """What the API server says of the objects of this stack; an invalid stack file costs two."""

    def ours(kind: str) -> list[Object]:
        names = {spec().cluster.namespace, MONITORING, LOGS}
        return [
            each
            for each in client().list("v1", kind)
            if (name := each["metadata"].get("namespace", "")) in names or name.endswith("-system")
        ]

    def events() -> str:
        return _lines(sorted((_event(each) for each in ours("Event")), key=lambda line: line[0]))

    def pods() -> str:
        return _lines(_pod(each) for each in ours("Pod"))

    def statuses(version: str, kind: str) -> Callable[[], str]:
        return lambda: json.dumps(
            [_status(each) for each in client().list(version, kind)], indent=1
        )

    return [
        Part(name="kube/version.txt", says="version of the API", gather=lambda: client().version()),
        Part(name="kube/events.txt", says="events of our namespaces", gather=events),
        Part(name="kube/pods.txt", says="pods and why they wait", gather=pods),
        *(
            Part(name=name, says=says, gather=statuses(version, kind))
            for name, says, version, kind in _STATUS
        ),
    ]


def _event(each: Object) -> tuple[str, ...]:
    about = each.get("involvedObject") or {}
    when = each.get("lastTimestamp") or each.get("eventTime") or ""
    what = f"{about.get('kind', '')}/{about.get('namespace', '')}/{about.get('name', '')}"
    message = " ".join(str(each.get("message", "")).split())
    return (when, str(each.get("type", "")), what, str(each.get("reason", "")), message)


def _pod(each: Object) -> tuple[str, ...]:
    status: dict[str, Any] = each.get("status") or {}
    waits = [
        f"{one['name']}: restarts {one.get('restartCount', 0)}, {_state(one.get('state') or {})}"
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or []
    ]
    reasons = [
        f"{one['type']}: {one.get('reason', '')} {one.get('message', '')}".strip()
        for one in status.get("conditions") or []
        if one.get("status") != "True"
    ]
    meta = each["metadata"]
    node = str((each.get("spec") or {}).get("nodeName", ""))
    phase = str(status.get("phase", ""))
    return (f"{meta['namespace']}/{meta['name']}", phase, node, *waits, *reasons)


def _state(state: dict[str, Any]) -> str:
    (name, detail), *_ = [*state.items(), ("unknown", {})]
    words = [str(detail[key]) for key in ("reason", "exitCode", "message") if key in detail]
    return " ".join([name, *words])


def _status(each: Object) -> dict[str, Any]:
    metadata = {name: each["metadata"][name] for name in _KEPT if name in each["metadata"]}
    return {"metadata": metadata, "status": each.get("status")}


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    return "".join(" | ".join(row) + "\n" for row in rows)
