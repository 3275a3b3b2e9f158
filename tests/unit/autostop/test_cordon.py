"""Nodes that are kept from new pods while they go, and what an engine that failed has taken."""

from __future__ import annotations

from typing import Any

from infra.clients.errors import AbsentError
from infra.operate.idle import set_nodes


class Cluster:
    """Keeps each patch; `away` is gone."""

    def __init__(self, away: str) -> None:
        self._away = away
        self.patched: list[tuple[str, bool]] = []

    def merge_patch(self, target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        name = target["metadata"]["name"]
        if name == self._away:
            raise AbsentError(f"node {name}: no", status=404)
        self.patched.append((name, bool(patch["spec"]["unschedulable"])))
        return target


def test_a_node_that_is_gone_keeps_no_other_from_taking_pods_again() -> None:
    """The engine took one and failed: the rest stayed cordoned, and were paid for."""
    cluster = Cluster(away="gpu-0")
    set_nodes(cluster, ("gpu-0", "gpu-1"), unschedulable=False)
    assert cluster.patched == [("gpu-1", False)]
