"""Keeps new pods off a stack's workers while they go: cordon(client, workers), uncordon(...).

A partition in DRAIN holds back Slurm's jobs only. A Kubernetes Job that is applied while the engine
works would start on a node that is about to go; cordoned, its pods wait for the stack's return.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Protocol

from infra.kube.errors import KubeError
from infra.reap.kube_activity import Lists, worker_nodes

_GONE: Final = 404
"""An engine that failed may have taken some of the nodes, and autoscaling any."""


class Patches(Lists, Protocol):
    """What is asked of the API server: infra.kube.client.KubeClient."""

    def merge_patch(self, target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]: ...


def cordon(client: Patches, workers: Collection[str]) -> tuple[str, ...]:
    """Names of the workers' nodes that took pods and now take none; all that are, or an error."""
    nodes = tuple(
        node["metadata"]["name"]
        for node in worker_nodes(client, workers)
        if not node.get("spec", {}).get("unschedulable")
    )
    try:
        _set(client, nodes, unschedulable=True)
    except BaseException:
        uncordon(client, nodes)
        raise
    return nodes


def uncordon(client: Patches, nodes: Sequence[str]) -> None:
    """Lets pods onto the nodes again."""
    _set(client, nodes, unschedulable=False)


def _set(client: Patches, nodes: Sequence[str], *, unschedulable: bool) -> None:
    for name in nodes:
        target = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        try:
            client.merge_patch(target, {"spec": {"unschedulable": unschedulable or None}})
        except KubeError as error:
            if error.status != _GONE:
                raise
