"""Work beside Slurm keeps a stack; what keeps the nodes running does not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from infra.operate.idle import kube_activity
from infra.render import names
from infra.render.kube_job import Pods, service_and_job
from stacks.load import load_stack

NODE = {"metadata": {"name": "node-a", "labels": {names.NODESET_NAME_LABEL: "worker"}}}


class Api:
    """Lists what a test put there, by kind."""

    def __init__(self, **objects: list[dict[str, Any]]) -> None:
        self.objects: dict[str, list[dict[str, Any]]] = {"Node": [NODE], **objects}

    def list(self, api_version: str, kind: str) -> list[dict[str, Any]]:
        return [{"kind": kind, **each} for each in self.objects.get(kind, [])]


def seen(**objects: list[dict[str, Any]]) -> tuple[list[str], list[datetime]]:
    return kube_activity(Api(**objects), "soperator", {"worker"})


def pod(
    owner: str | None = None,
    *,
    gpus: int = 0,
    namespace: str = "default",
    phase: str = "Running",
    node: str = "node-a",
    ended: str | None = None,
) -> dict[str, Any]:
    version, _, kind = (owner or "").rpartition("/")
    limits = {names.GPU_RESOURCE: str(gpus)} if gpus else {}
    state = {"terminated": {"finishedAt": ended}} if ended else {"running": {}}
    return {
        "metadata": {
            "name": "p",
            "namespace": namespace,
            **({"ownerReferences": [{"apiVersion": version, "kind": kind}]} if owner else {}),
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": phase, "containerStatuses": [{"state": state}]},
    }


def printed_job(status: dict[str, Any]) -> dict[str, Any]:
    """As `soperator runs manifest` prints it, in Slurm's own namespace."""
    pods = Pods(
        name="finetune",
        namespace="soperator",
        nodes=1,
        worker=load_stack("l40s-dev").nodes.workers[0],
        image="i",
        script="true",
        gpus=0,
        environment={},
        volumes={},
        mounts=(),
    )
    return {**service_and_job(pods)[-1], "status": status}


def test_a_job_that_was_printed_for_kubernetes_is_work(public_key_file: object) -> None:
    assert seen(Job=[printed_job({"active": 1})]) == (["Job soperator/finetune"], [])
    assert seen(Job=[printed_job({})]) == (["Job soperator/finetune"], [])


def test_its_end_counts_as_the_end_of_a_job(public_key_file: object) -> None:
    over = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-11-21T10:00:00Z"}
    found = seen(
        Job=[printed_job({"conditions": [over]})],
        Pod=[pod("batch/v1/Job", gpus=1, phase="Succeeded", ended="2026-11-21T09:00:00Z")],
    )
    assert found == ([], [datetime(2026, 11, 21, hour, tzinfo=UTC) for hour in (10, 9)])


def test_a_pod_with_gpus_is_work_whoever_owns_it_and_wherever_it_waits() -> None:
    for owner in (None, "apps/v1/ReplicaSet", "kubeflow.org/v1/PyTorchJob"):
        assert seen(Pod=[pod(owner, gpus=8, node="", phase="Pending")])[0]
    assert seen(Pod=[pod("batch/v1/Job")]) == (["Pod default/p"], [])


def test_what_keeps_the_nodes_running_is_no_work() -> None:
    rest = [
        pod("apps.kruise.io/v1beta1/StatefulSet", gpus=8, namespace="soperator"),
        pod("apps/v1/DaemonSet", gpus=1),
        pod("batch/v1/Job", namespace="soperator"),
        pod("apps/v1/ReplicaSet", namespace="kube-system"),
        pod("batch/v1/Job", node="node-of-the-system"),
    ]
    assert seen(Pod=rest) == ([], [])
