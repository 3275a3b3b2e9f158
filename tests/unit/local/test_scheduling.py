"""Where pods land: selectors, taints and what a node has left."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from infra.clients.kube_rules import Scheduler, quantity
from infra.local.reconcile.__main__ import node_objects
from tests.local.slurm_stand import node_group

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
RULES = {"nodeSelector": {"role": "worker"}, "tolerations": [{**TAINT, "operator": "Equal"}]}


def gpu_nodes(**changes: Any) -> list[dict[str, Any]]:
    """The node of a group of L40S workers."""
    fields: dict[str, Any] = {
        "resources": {"platform": "gpu-l40s-d", "preset": "2gpu-64vcpu-384gb"},
        "taints": [{**TAINT, "effect": "NO_SCHEDULE"}],
    }
    return node_objects([node_group("group", {"role": "worker"}, **{**fields, **changes})])


def test_a_pod_takes_the_gpus_of_its_node() -> None:
    scheduler = Scheduler(gpu_nodes())
    requests = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "2"}
    assert scheduler.place(RULES, requests)[0] is not None
    node, reason = scheduler.place(RULES, requests)
    assert node is None
    assert reason == (
        "insufficient nvidia.com/gpu: needs 2, the 1 matching node(s) have at most 0 left"
    )


def test_a_pod_larger_than_its_node_waits() -> None:
    _, reason = Scheduler(gpu_nodes()).place(RULES, {"memory": "400Gi"})
    assert reason.startswith("insufficient memory")


def test_no_matching_label_is_said_with_the_selector() -> None:
    _, reason = Scheduler(gpu_nodes()).place({"nodeSelector": {"role": "x", "a": "b"}})
    assert reason == "no node matches nodeSelector a=b,role=x"


def test_a_taint_without_toleration_keeps_the_pod_away() -> None:
    _, reason = Scheduler(gpu_nodes()).place({"nodeSelector": {"role": "worker"}})
    assert "taint nvidia.com/gpu=present:NoSchedule, not tolerated" in reason


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
    ],
)
def test_these_tolerations_let_the_pod_in(toleration: dict[str, str]) -> None:
    rules = {"nodeSelector": {"role": "worker"}, "tolerations": [toleration]}
    assert Scheduler(gpu_nodes()).place(rules)[0] is not None


@pytest.mark.parametrize(
    "toleration",
    [
        {"key": "other", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "value": "other"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"},
    ],
)
def test_these_tolerations_do_not(toleration: dict[str, str]) -> None:
    rules = {"nodeSelector": {"role": "worker"}, "tolerations": [toleration]}
    assert Scheduler(gpu_nodes()).place(rules)[0] is None


def test_node_affinity_counts_like_a_selector() -> None:
    def affinity(value: str) -> dict[str, Any]:
        term = {"matchExpressions": [{"key": "role", "operator": "In", "values": [value]}]}
        required = {"nodeSelectorTerms": [term]}
        node = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        return {"affinity": {"nodeAffinity": node}}

    scheduler = Scheduler(gpu_nodes(taints=[]))
    assert scheduler.place(affinity("worker"))[0] is not None
    assert scheduler.place(affinity("login"))[0] is None


def test_a_group_on_a_fabric_has_topology_labels() -> None:
    plain, fabric = gpu_nodes()[0], gpu_nodes(gpu_cluster={"id": "computegpucluster-1"})[0]
    assert "topology.nebius.com/tier-0" not in plain["metadata"]["labels"]
    assert "topology.nebius.com/tier-0" in fabric["metadata"]["labels"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500m", Fraction(1, 2)), ("384Gi", 384 * 2**30), ("2", 2), ("1.5G", 1500000000), (None, 0)],
)
def test_quantities_are_exact(text: str | None, expected: Fraction | int) -> None:
    assert quantity(text) == expected


def test_a_word_is_no_quantity() -> None:
    with pytest.raises(ValueError, match="quantity 'much'"):
        quantity("much")
