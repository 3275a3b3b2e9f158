"""What runs on the workers beside Slurm: kube_activity(client, ...), from pods and Jobs.

Slurm knows nothing of a Kubernetes Job that `soperator manifest` printed: its nodes are idle there.
Owns which pods count: those that ask for GPUs or for a nodeset, and what runs by itself on one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from infra.render import names

_SYSTEM: Final = ("kube-system", "soperator-system")
_ENDED: Final = ("Succeeded", "Failed")
_SLURMS: Final = ("apps.kruise.io/", "slurm.nebius.ai/")
"""Owners of slurmd's pods: every StatefulSet of Soperator is OpenKruise's."""


class Lists(Protocol):
    """What is asked of the API server: infra.kube.client.KubeClient."""

    def list(self, api_version: str, kind: str) -> list[dict[str, Any]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeActivity:
    """Pods and Jobs that are not over, as `Job soperator/finetune`, and when others ended."""

    unfinished: tuple[str, ...]
    ended_at: tuple[datetime, ...]


def kube_activity(client: Lists, slurm_namespace: str, workers: Collection[str]) -> KubeActivity:
    """What works, or waits to work, on the nodesets outside Slurm."""
    nodes = {each["metadata"]["name"] for each in worker_nodes(client, workers)}
    unfinished: list[str] = []
    ended: list[datetime] = []
    for job in client.list("batch/v1", "Job"):
        if not _wants_worker(job["spec"]["template"]["spec"], workers):
            continue
        status = job.get("status", {})
        ends = [
            each["lastTransitionTime"]
            for each in status.get("conditions", ())
            if each["type"] in ("Complete", "Failed") and each["status"] == "True"
        ]
        ended.extend(map(datetime.fromisoformat, ends))
        if not ends and not (job["spec"].get("suspend") and not status.get("active")):
            unfinished.append(_named("Job", job))
    for pod in client.list("v1", "Pod"):
        if _is_infrastructure(pod, slurm_namespace) or not (
            _wants_worker(pod["spec"], workers) or _works_on(pod, nodes, slurm_namespace)
        ):
            continue
        if pod.get("status", {}).get("phase") not in _ENDED:
            unfinished.append(_named("Pod", pod))
        ended.extend(_ends(pod))
    return KubeActivity(unfinished=tuple(unfinished), ended_at=tuple(ended))


def worker_nodes(client: Lists, workers: Collection[str]) -> list[dict[str, Any]]:
    """The nodes of these nodesets."""
    return [
        each
        for each in client.list("v1", "Node")
        if each["metadata"].get("labels", {}).get(names.NODESET_NAME_LABEL) in workers
    ]


def _wants_worker(spec: dict[str, Any], workers: Collection[str]) -> bool:
    if spec.get("nodeSelector", {}).get(names.NODESET_NAME_LABEL) in workers:
        return True
    return any(
        names.GPU_RESOURCE in container.get("resources", {}).get(key, {})
        for container in [*spec["containers"], *spec.get("initContainers", ())]
        for key in ("limits", "requests")
    )


def _works_on(pod: dict[str, Any], nodes: Collection[str], slurm_namespace: str) -> bool:
    """Whether it is a Job's pod, or nobody's, on a worker; Soperator's checks are no work."""
    meta = pod["metadata"]
    return (
        pod["spec"].get("nodeName") in nodes
        and meta["namespace"] not in (*_SYSTEM, slurm_namespace)
        and all(owner["kind"].endswith("Job") for owner in meta.get("ownerReferences", ()))
    )


def _is_infrastructure(pod: dict[str, Any], slurm_namespace: str) -> bool:
    owners = pod["metadata"].get("ownerReferences", ())
    is_slurms_place = pod["metadata"]["namespace"] == slurm_namespace
    return any(
        owner["kind"] == "DaemonSet"
        or (is_slurms_place and owner["apiVersion"].startswith(_SLURMS))
        for owner in owners
    )


def _ends(pod: dict[str, Any]) -> Iterator[datetime]:
    for container in pod.get("status", {}).get("containerStatuses", ()):
        finished = container.get("state", {}).get("terminated", {}).get("finishedAt")
        if finished is not None:
            yield datetime.fromisoformat(finished)


def _named(kind: str, found: dict[str, Any]) -> str:
    return f"{kind} {found['metadata']['namespace']}/{found['metadata']['name']}"
