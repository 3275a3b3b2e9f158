"""The labels that say where a node stands in the InfiniBand fabric, and who waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.local.reconcile.snapshot import Object, name_of

TOPOLOGY_LABELS: Final = ("topology.nebius.com/tier-0", "topology.nebius.com/tier-1")


def topology_problem(cluster: Mapping[str, Any], nodeset: Mapping[str, Any], node: Object) -> str:
    """Why a worker of these specs does not come up on the node; empty where it does."""
    plugin = (cluster.get("slurmConfig") or {}).get("topologyPlugin", "topology/tree")
    labels = node["metadata"].get("labels") or {}
    has_gpu = (nodeset.get("gpu") or {}).get("enabled")
    if not plugin or not has_gpu or any(label in labels for label in TOPOLOGY_LABELS):
        return ""
    return (
        f"worker-init waits for the label {TOPOLOGY_LABELS[0]} on node {name_of(node)}, which "
        f"only InfiniBand nodes get; set slurmConfig.topologyPlugin to '' (is '{plugin}')"
    )
