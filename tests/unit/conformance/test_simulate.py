"""When the operator counts as done, by what it says of the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from infra.clients.errors import AbsentError
from infra.operate.conformance.cluster import OperatorError, reconciled, simulate

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
        reconciled(client, "soperator", timeout_s=0)
    else:
        with pytest.raises(OperatorError, match="SlurmCluster soperator"):
            reconciled(client, "soperator", timeout_s=0)


def test_a_database_gets_its_passwords_and_its_word_that_it_is_ready() -> None:
    place = {"namespace": "soperator"}
    root = {"name": "root", "key": "password", "generate": True}
    given = {"name": "given", "key": "password"}
    there = {
        "MariaDB": {
            "metadata": {"name": "db", **place},
            "spec": {"rootPasswordSecretKeyRef": root, "passwordSecretKeyRef": given},
        }
    }
    made, patched = [], []

    class Database:
        def list(self, version: str, kind: str, namespace: str) -> list[dict[str, Any]]:
            if kind == "Grant":
                raise AbsentError("Grant: the API server does not know this kind", status=404)
            return [there[kind]] if kind in there else []

        def get(self, target: dict[str, Any]) -> None: ...

        def create(self, target: dict[str, Any]) -> None:
            made.append((target["kind"], target["metadata"]["name"], target["stringData"]))

        def merge_patch(self, target: Any, patch: Any, *, subresource: str) -> None:
            (ready,) = patch["status"]["conditions"]
            patched.append((target["metadata"]["name"], ready["type"], ready["status"]))

    client: Any = Database()
    simulate(client, "soperator")
    assert made == [("Secret", "root", {"password": "generated"})], "one that is given is there"
    assert patched == [("db", "Ready", "True")]
