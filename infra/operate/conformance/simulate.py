"""Simulates kubelets, Kubernetes' controllers and kruise for an operator that waits for them.

Marks Jobs complete and sets and the database ready, so that the operator goes on. No pod runs:
whether they could is asked of the same objects by infra/operate/conformance/pod_checks.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from infra.clients.errors import KubeError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Object, holds, kubernetes_time, name_of
from infra.render.names import kube_object

_POLL_S: Final = 0.5
_PATIENCE_S: Final = 4.0
_CLUSTER: Final = ("slurm.nebius.ai/v1", "SlurmCluster")
_NODESET: Final = ("slurm.nebius.ai/v1alpha1", "NodeSet")
_DECLARED: Final = (_CLUSTER, _NODESET)
_SETS: Final = (
    ("apps.kruise.io/v1beta1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
)


class NotReconciledError(Exception):
    """The operator did not come to its end: what is missing, in its own words."""


def reconciled(
    client: KubeClient, namespace: str, *, databases: bool, timeout_s: float = 120.0
) -> None:
    """Simulates until the SlurmCluster is available and each NodeSet has its set of pods.

    `databases`: whether MariaDB is nobody else's to bring up here.
    """
    began = poked = time.monotonic()
    while True:
        simulate(client, namespace, databases=databases)
        missing = _missing(client, namespace)
        if not missing:
            return
        now = time.monotonic()
        if now > began + timeout_s:
            raise NotReconciledError(f"after {timeout_s:g} s: {'; '.join(missing)}")
        if now > poked + _PATIENCE_S:
            poked = now
            _poke(client, namespace, round(now - began))
        time.sleep(_POLL_S)


def simulate(client: KubeClient, namespace: str, *, databases: bool) -> None:
    """One round of answers."""
    for job in client.list("batch/v1", "Job", namespace):
        if not (job.get("status") or {}).get("succeeded"):
            _complete(client, job)
    for version, kind in _SETS:
        for item in client.list(version, kind, namespace):
            _ready(client, item)
    if databases:
        for item in _listed(client, "k8s.mariadb.com/v1alpha1", "MariaDB", namespace):
            _bring_up(client, item)
        for item in _listed(client, "k8s.mariadb.com/v1alpha1", "Grant", namespace):
            _say_ready(client, item)


def _poke(client: KubeClient, namespace: str, age_s: int) -> None:
    """Makes the operator look again: it waits longer after each refusal, up to minutes."""
    for version, kind in _DECLARED:
        for item in client.list(version, kind, namespace):
            annotations = {"conformance.soperator-stack/age-s": str(age_s)}
            client.merge_patch(item, {"metadata": {"annotations": annotations}})


def _missing(client: KubeClient, namespace: str) -> list[str]:
    found: list[str] = []
    sets = {name_of(each) for each in client.list(*_SETS[0], namespace)}
    for nodeset in client.list(*_NODESET, namespace):
        if name_of(nodeset) not in sets:
            found.append(f"NodeSet {name_of(nodeset)} has no StatefulSet")
    for cluster in client.list(*_CLUSTER, namespace):
        status = cluster.get("status") or {}
        # Either is said once everything was made, and is the end where there are to be no pods.
        is_stopped = str(cluster["spec"].get("maintenance", "")).startswith("downscale")
        ended = ("Available", "Not available") if is_stopped else ("Available",)
        if status.get("phase") not in ended:
            conditions = [
                f"{each['type']} is {each['status']}: {each.get('message', '')}"
                for each in status.get("conditions") or []
                if each["status"] != "True"
            ]
            found.append(f"SlurmCluster {name_of(cluster)}: {', '.join(conditions) or 'no status'}")
    return found


def _bring_up(client: KubeClient, database: Object) -> None:
    """The Secrets that its operator would generate, and its word that the database is ready."""
    for each in generated(database):
        if client.get(each) is None:
            client.create(each)
    _say_ready(client, database)


def _say_ready(client: KubeClient, item: Object) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "simulated"}
    if not holds(item, "Ready"):
        at = kubernetes_time()
        _status(client, item, {"conditions": [{**ready, "lastTransitionTime": at}]})


def generated(database: Object) -> Iterator[Object]:
    """Secrets of passwords that a MariaDB asks its operator for."""
    for key in ("rootPasswordSecretKeyRef", "passwordSecretKeyRef"):
        reference = database["spec"].get(key) or {}
        if reference.get("generate"):
            namespace = database["metadata"]["namespace"]
            content = {reference["key"]: "generated"}
            yield kube_object("v1", "Secret", reference["name"], namespace, stringData=content)


def _complete(client: KubeClient, job: Object) -> None:
    now = kubernetes_time()
    done = [{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now}]
    # The API server takes the two steps of a Job's end in their order only.
    _status(client, job, {"active": 0, "ready": 0, "startTime": now, "conditions": done})
    done = [*done, {"type": "Complete", "status": "True", "lastTransitionTime": now}]
    ended = {"active": 0, "ready": 0, "succeeded": 1, "startTime": now, "completionTime": now}
    _status(client, job, {**ended, "conditions": done})


def _ready(client: KubeClient, item: Object) -> None:
    wanted = item["spec"].get("replicas", 1)
    names = ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]
    if "kruise" in item["apiVersion"]:
        names += ["currentReplicas", "updatedReadyReplicas", "updatedAvailableReplicas"]
    status: dict[str, Any] = dict.fromkeys(names, wanted)
    status["observedGeneration"] = item["metadata"]["generation"]
    if item["kind"] == "Deployment":
        status["conditions"] = [{"type": "Available", "status": "True"}]
    live = item.get("status") or {}
    if any(live.get(key) != value for key, value in status.items() if key != "conditions"):
        _status(client, item, status)


def _status(client: KubeClient, item: Object, status: Object) -> None:
    try:
        client.merge_patch(item, {"status": status}, subresource="status")
    except KubeError as error:
        # Its operator took it away meanwhile, or has changed it.
        if error.status not in (404, 409, 422):
            raise


def _listed(client: KubeClient, version: str, kind: str, namespace: str) -> list[Object]:
    try:
        return client.list(version, kind, namespace)
    except KubeError as error:
        if error.status != 404:
            raise
        return []
