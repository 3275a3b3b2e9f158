"""Records that Helm keeps of releases, and those that a run which was cut off leaves in its way.

Helm installs no release whose name has a record: drop_unknown() before a release is made. A state
file that was lost, and a run that was killed between Helm's record and the engine's, leave such
records behind. Without its record a release is installed over its own objects, which Helm takes
over by their annotations (helm/helm pkg/action/validate.go, existingResourceConflict, read
2026-11-21). Helm changes no release whose last record says that a change is under way:
drop_unfinished() before a release is changed. A run that was killed while Helm waited leaves one.
"""

from __future__ import annotations

from typing import Any, Final

from infra.kube.client import KubeClient

MARK_NAMESPACE: Final = "kube-system"
_MARK: Final = "soperator-stack"
# Source: helm/helm pkg/release/status.go, IsPending, v3.20.2.
_UNFINISHED: Final = ("pending-install", "pending-upgrade", "pending-rollback")

Object = dict[str, Any]


def drop_unknown(client: KubeClient, stack: str, *, release: str, namespace: str) -> list[str]:
    """Names of the records of a release that it deleted: those of this stack's earlier runs.

    A release that was there before the stack first came to this cluster is somebody else's: its
    records stay, and Helm refuses the name.
    """
    return _drop(client, stack, namespace, f"owner=helm,name={release}")


def drop_unfinished(client: KubeClient, stack: str, *, release: str, namespace: str) -> list[str]:
    """Names of the records that it deleted: changes of a release that a run was killed in.

    The engine lets one run at a time change a stack, so whoever began them is gone. The record of
    the last whole revision stays, and Helm goes on from it.
    """
    label = f"owner=helm,name={release},status in ({', '.join(_UNFINISHED)})"
    return _drop(client, stack, namespace, label)


def _drop(client: KubeClient, stack: str, namespace: str, label: str) -> list[str]:
    came = _came(client, stack)["metadata"]["creationTimestamp"]
    found = client.list("v1", "Secret", namespace, label=label)
    # RFC 3339 in UTC, so that text compares as time does.
    ours = [each for each in found if each["metadata"]["creationTimestamp"] >= came]
    for each in ours:
        client.delete(each)
    return sorted(each["metadata"]["name"] for each in ours)


def mark(stack: str) -> Object:
    """What says since when a stack is in a cluster; it stays as long as the cluster."""
    metadata = {"name": f"{_MARK}-{stack}", "namespace": MARK_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def _came(client: KubeClient, stack: str) -> Object:
    wanted = mark(stack)
    return client.get(wanted) or client.apply(wanted)
