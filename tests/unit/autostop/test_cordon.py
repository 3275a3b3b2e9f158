"""Nodes that are kept from new pods while they go, and what an engine that failed has taken."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clients.errors import AbsentError, KubeError
from infra.operate.idle import cordon, uncordon
from infra.render import names


class Cluster:
    """Nodes of the nodeset `gpu` by name; each patch is kept, `away` answers with a status."""

    def __init__(self, *nodes: str, away: dict[str, int] | None = None) -> None:
        self._nodes, self._away = nodes, away or {}
        self.patched: list[tuple[str, bool]] = []

    def list(self, _version: str, _kind: str) -> list[dict[str, Any]]:
        labels = {names.NODESET_NAME_LABEL: "gpu"}
        return [{"metadata": {"name": name, "labels": labels}} for name in self._nodes]

    def merge_patch(self, target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        name = target["metadata"]["name"]
        if name in self._away:
            status = self._away[name]
            refusal = AbsentError if status == 404 else KubeError
            raise refusal(f"node {name}: no", status=status)
        self.patched.append((name, bool(patch["spec"]["unschedulable"])))
        return target


def test_a_node_that_is_gone_keeps_no_other_from_taking_pods_again() -> None:
    """The engine took one and failed: the rest stayed cordoned, and were paid for."""
    cluster = Cluster(away={"gpu-0": 404})
    uncordon(cluster, ("gpu-0", "gpu-1"))
    assert cluster.patched == [("gpu-1", False)]


def test_a_node_that_cannot_be_asked_undoes_what_was_done() -> None:
    cluster = Cluster("gpu-0", "gpu-1", away={"gpu-1": 503})
    with pytest.raises(KubeError, match="gpu-1"):
        cordon(cluster, ("gpu",))
    assert cluster.patched == [("gpu-0", True), ("gpu-0", False)]
