"""When the operator counts as done, by what it says of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from infra.operate.conformance.cluster import NotReconciledError, reconciled

NODESET = {"metadata": {"name": "worker"}}


class Answers:
    """A Kubernetes API with one cluster, its nodeset and the nodeset's set of pods."""

    def __init__(self, phase: str, maintenance: str) -> None:
        self.cluster: dict[str, Any] = {
            "metadata": {"name": "soperator"},
            "spec": {"maintenance": maintenance},
            "status": {"phase": phase},
        }

    def list(self, version: str, kind: str, namespace: str) -> list[dict[str, Any]]:
        pods = {"metadata": {"name": "worker", "generation": 1}, "spec": {"replicas": 0}}
        there = {
            ("slurm.nebius.ai/v1", "SlurmCluster"): self.cluster,
            ("slurm.nebius.ai/v1alpha1", "NodeSet"): NODESET,
            ("apps.kruise.io/v1beta1", "StatefulSet"): pods,
        }
        found = there.get((version, kind))
        return [] if found is None else [{"apiVersion": version, "kind": kind, **found}]

    def merge_patch(self, *_: object, **__: object) -> None: ...


@pytest.mark.parametrize(
    ("phase", "maintenance", "is_done"),
    [
        ("Available", "none", True),
        ("Not available", "none", False),
        # Its nodeset has a set of pods before the cluster's Secrets and ConfigMaps are made.
        ("Pending", "downscale", False),
        ("Not available", "downscale", True),
    ],
)
def test_a_cluster_is_done_when_the_operator_went_through_all_of_it(
    phase: str, maintenance: str, is_done: bool
) -> None:
    client: Any = Answers(phase, maintenance)
    if is_done:
        reconciled(client, "soperator", databases=False, timeout_s=0)
    else:
        with pytest.raises(NotReconciledError, match="SlurmCluster soperator"):
            reconciled(client, "soperator", databases=False, timeout_s=0)
