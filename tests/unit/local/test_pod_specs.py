"""Pods of the local stack mount what the operator's own do, as stacks/ knows it."""

from __future__ import annotations

from typing import Any

from infra.local.reconcile.pod_specs import PodSet, pod_set
from stacks.machines import JAIL_UPPER, MEMORY
from tests.unit.kube.samples import CLUSTER, NODESETS, one, rendered
from tests.unit.local.operator_mounts import IN_POD


def paths(made: PodSet) -> set[str]:
    """mountPaths of the main container."""
    return {each["mountPath"].rstrip("/") for each in made.spec["containers"][0]["volumeMounts"]}


def declared(volumes: dict[str, Any]) -> None:
    """Takes out what the resource declares itself."""
    for key in ("jailSubMounts", "customMounts", "customVolumeMounts"):
        volumes.pop(key, None)


def test_login_and_worker_pods_have_the_operators_own_mounts_and_no_others() -> None:
    cluster = one(rendered("helm-slurm-cluster", CLUSTER), "SlurmCluster")
    nodeset = one(rendered("helm-nodesets", NODESETS), "NodeSet")
    login, worker = cluster["spec"]["slurmNodes"]["login"], nodeset["spec"]
    for each in (login, worker):
        each["sssd"] = {"image": "sssd"}
    declared(login["volumes"])
    declared(worker["slurmd"]["volumes"])
    cluster["spec"]["slurmConfig"]["topologyPlugin"] = "topology/tree"
    made = paths(pod_set("login", cluster))
    made |= paths(pod_set("worker", cluster, nodeset))
    assert made == set(IN_POD)


def test_a_mount_at_the_operators_own_path_stays_in_the_pod_beside_it() -> None:
    """The API server refuses the pod for it, as it does the operator's: must be unique."""
    cluster = one(rendered("helm-slurm-cluster", CLUSTER), "SlurmCluster")
    nodeset = one(rendered("helm-nodesets", NODESETS), "NodeSet")
    nodeset["spec"]["slurmd"]["volumes"]["jailSubMounts"] = [
        {"name": "memory", "mountPath": MEMORY, "volumeSource": {"emptyDir": {}}}
    ]
    worker = pod_set("worker", cluster, nodeset)
    mounts = worker.spec["containers"][0]["volumeMounts"]
    at = [each["name"] for each in mounts if each["mountPath"] == f"{JAIL_UPPER}{MEMORY}"]
    assert sorted(at) == ["in-memory", "memory"]
