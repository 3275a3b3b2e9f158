"""The chores of a controller-manager that the local stack needs, since it has none.

Owns the binding of claims, the end of deleted claims and volumes, and the end of namespaces.
"""

from __future__ import annotations

from typing import Final

from infra.kube.client import KubeClient
from infra.kube.errors import KubeError
from infra.local.reconcile.snapshot import Object, Snapshot, name_of
from infra.local.reconcile.volumes import bound_volume

_PROTECTED: Final = ("PersistentVolumeClaim", "PersistentVolume")
_NAMESPACED: Final = (
    ("slurm.nebius.ai/v1alpha1", "ActiveCheck"),
    ("slurm.nebius.ai/v1alpha1", "NodeSet"),
    ("slurm.nebius.ai/v1", "SlurmCluster"),
    ("slurm.nebius.ai/v1alpha1", "JailedConfig"),
    ("slurm.nebius.ai/v1alpha1", "NodeConfigurator"),
    ("k8up.io/v1", "Schedule"),
    ("k8up.io/v1", "Backup"),
    ("k8up.io/v1", "Prune"),
    ("k8up.io/v1", "Restore"),
    ("k8up.io/v1", "Snapshot"),
    ("k8up.io/v1", "PodConfig"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "Deployment"),
    ("apps.kruise.io/v1beta1", "StatefulSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("v1", "Pod"),
    ("v1", "Event"),
    ("batch/v1", "Job"),
    ("batch/v1", "CronJob"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
)


def bind_claims(client: KubeClient, snapshot: Snapshot) -> None:
    """Mark claims and the volumes that name them as bound."""
    for claim in snapshot.all("PersistentVolumeClaim"):
        if (claim.get("status") or {}).get("phase") == "Bound":
            continue
        volume = bound_volume(claim, snapshot)
        if volume is None:
            continue
        if not volume["spec"].get("claimRef"):
            reference = {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": claim["metadata"]["namespace"],
                "name": name_of(claim),
                "uid": claim["metadata"]["uid"],
            }
            client.merge_patch(volume, {"spec": {"claimRef": reference}})
            volume["spec"]["claimRef"] = reference
        client.merge_patch(claim, {"spec": {"volumeName": name_of(volume)}})
        capacity = {"accessModes": volume["spec"]["accessModes"]}
        capacity["capacity"] = volume["spec"]["capacity"]
        client.merge_patch(claim, {"status": {"phase": "Bound", **capacity}}, subresource="status")
        client.merge_patch(volume, {"status": {"phase": "Bound"}}, subresource="status")


def release_deleted(client: KubeClient, snapshot: Snapshot) -> None:
    """Let go of deleted claims and volumes: their pods are gone by now."""
    for kind in _PROTECTED:
        for item in snapshot.by_kind.get(kind, []):
            if "deletionTimestamp" in item["metadata"] and item["metadata"].get("finalizers"):
                _quietly(client, item)


def end_namespaces(client: KubeClient, snapshot: Snapshot) -> None:
    """Delete what deleted namespaces hold, then let them end."""
    for namespace in snapshot.by_kind.get("Namespace", []):
        if "deletionTimestamp" not in namespace["metadata"]:
            continue
        held = [
            item
            for version, kind in _NAMESPACED
            for item in client.list(version, kind, name_of(namespace))
        ]
        for item in held:
            if "deletionTimestamp" not in item["metadata"] or item["kind"] == "Pod":
                # No kubelet ends a pod's grace.
                client.delete(item, grace_s=0 if item["kind"] == "Pod" else None)
        if not held:
            client.finalize_namespace(namespace)


def _quietly(client: KubeClient, item: Object) -> None:
    try:
        client.merge_patch(item, {"metadata": {"finalizers": None}})
    except KubeError as error:
        if error.status != 404:  # gone meanwhile
            raise
