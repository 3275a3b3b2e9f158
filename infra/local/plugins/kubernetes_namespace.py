"""The end of a namespace in a cluster without a controller-manager.

On a whole cluster kube-controller-manager empties a deleted namespace and takes its finalizer away.
The local stack runs the API server alone, so whoever deletes a namespace there does it.
"""

from __future__ import annotations

from infra.local.kube.client import KubeClient


def finish_namespace(client: KubeClient, name: str) -> None:
    """Empty a deleted namespace and release it, unless a controller-manager does."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system"},
    }
    if client.get(lease) is not None:
        return
    client.empty_namespace(name)
    client.release_namespace(name)
