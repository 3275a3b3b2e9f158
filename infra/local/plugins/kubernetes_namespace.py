"""The end of a namespace in a cluster without a controller-manager.

On a whole cluster kube-controller-manager empties a deleted namespace and takes its finalizer away.
The local stack runs the API server alone, so whoever deletes a namespace there does it.
"""

from __future__ import annotations

import threading
from typing import Final

from infra.kube.client import KubeClient

_EMPTY_TIMEOUT_S: Final = 60.0


def finish_namespace(client: KubeClient, name: str, cancelled: threading.Event) -> None:
    """Empty a deleted namespace and release it, unless a controller-manager does."""
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system"},
    }
    if client.get(lease) is not None:
        return
    held = [
        item
        for api_version, kind in client.namespaced_kinds()
        for item in client.list(api_version, kind, name)
    ]
    for item in held:
        client.delete(item)
    for item in held:
        client.wait_gone(item, timeout_s=_EMPTY_TIMEOUT_S, cancelled=cancelled)
    namespace = client.get({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    if namespace is not None:
        client.finalize_namespace(namespace)
