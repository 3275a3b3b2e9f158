"""A copy of the jail brought back: the Restore of k8up and the place that it writes to. Pure.

A Restore writes to the root of a claim and nowhere else (k8up-io/k8up operator/restorecontroller,
read 2026-11-21), so a folder beside the users' files is a volume and a claim of its own on the same
filesystem.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from infra.render import names
from infra.render.backup import (
    API_VERSION,
    CLAIM,
    PASSWORD_KEY,
    POD_CONFIG,
    SECRET,
    kept_secret,
    password_key,
)

KIND: Final = "Restore"
JAIL_ON_NODE: Final = "/mnt/jail"
"""Where the nodes mount the jail: helm-slurm-cluster-storage."""
FOLDER: Final = "/mnt/restored"
"""Folder of the jail that has what is restored beside the users' files."""
_COPIED: Final = f"/data/{CLAIM}"
"""Path of the jail in every snapshot."""
_CAPACITY: Final = "1Gi"
"""Of a folder; Kubernetes wants one and nothing holds to it."""
_PATTERNS: Final = frozenset("*?[]\\")

Object = dict[str, Any]


def restore(
    name: str,
    namespace: str,
    *,
    backend: Mapping[str, Any],
    snapshot: str,
    claim: str = CLAIM,
    path: str | None = None,
) -> Object:
    """The Restore of a snapshot, or of one path of the jail in it, into the root of a claim."""
    spec: dict[str, Any] = {
        "backend": dict(backend),
        "snapshot": snapshot,
        "restoreMethod": {"folder": {"claimName": claim}},
        "podConfigRef": {"name": POD_CONFIG},
        "podSecurityContext": {"runAsUser": 0},
        "failedJobsHistoryLimit": 2,
        "successfulJobsHistoryLimit": 2,
    }
    if path is not None:
        spec["restoreFilter"] = f"{_COPIED}{path}"
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


def path_problem(path: str) -> str:
    """Why a path cannot be chosen from a snapshot; empty where it can."""
    parts = path.split("/")[1:]
    if not path.startswith("/") or path == "/" or not all(parts) or {".", ".."} & set(parts):
        return "is no absolute path in the jail, such as /home/user/file"
    if _PATTERNS & set(path):
        return "has a letter that restic takes for a pattern: *, ?, [, ] or \\"
    return ""


def folder_in_jail(name: str) -> str:
    """Path that users see of what a Restore of this name writes beside their files."""
    return f"{FOLDER}/{name}"


def folder_objects(name: str, namespace: str) -> tuple[Object, Object]:
    """A volume on that folder of the jail, which the node makes, and its claim."""
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeMode": "Filesystem"}
    expression = {"key": names.JAIL_LABEL, "operator": "In", "values": ["true"]}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            **shared,
            "capacity": {"storage": _CAPACITY},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": namespace,
                "name": name,
            },
            "hostPath": {
                "path": f"{JAIL_ON_NODE}{folder_in_jail(name)}",
                "type": "DirectoryOrCreate",
            },
            "nodeAffinity": {
                "required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
            },
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **shared,
            "volumeName": name,
            "resources": {"requests": {"storage": _CAPACITY}},
        },
    }
    return volume, claim


def backends_of(backend: Mapping[str, Any], repository: str) -> list[dict[str, Any]]:
    """The schedule's backend, turned to the repository that a snapshot lies in, with each place
    that may have its password, the first that has it counts.

    Another one than the schedule's was made with an earlier password, whose fingerprint is the last
    part of its name: the state brings it, or, where the state was lost since, the cluster kept it.
    """
    s3 = backend["s3"]
    if repository in ("", f"s3:{s3['endpoint']}/{s3['bucket']}"):
        return [dict(backend)]
    bucket = repository.removeprefix(f"s3:{s3['endpoint']}/")
    fingerprint = repository.rpartition("/")[2]
    places = (
        {"name": SECRET, "key": password_key(fingerprint)},
        {"name": kept_secret(fingerprint), "key": PASSWORD_KEY},
    )
    return [{"s3": {**s3, "bucket": bucket}, "repoPasswordSecretRef": each} for each in places]
