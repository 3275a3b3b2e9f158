"""helm-slurm-cluster-storage: filesystems of the nodes as PersistentVolumes, with their mounts.

Each volume is a host path that a DaemonSet mounts from a virtiofs tag. Does not mount anything:
on the local stack the reconciler does, from the PVs that this makes.
"""

from __future__ import annotations

import re
from typing import Any

from infra.local.kube.charts.release import MOUNT_TAG, Object, Release
from infra.local.kube.charts.values import ChartError

_TAG = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def render(release: Release, values: dict[str, Any]) -> list[Object]:
    """StorageClass, then PV, PVC and mount of each declared volume."""
    storage_class = values["storageClass"]["local"]["name"]
    volumes, places = values["volume"], values["storage"]
    if volumes["jail"]["type"] != "filestore":
        raise ChartError(
            f"volume.jail.type: {volumes['jail']['type']!r} is not supported on the local stack "
            "(has: filestore)"
        )
    objects = [
        release.cluster_object(
            "storage.k8s.io/v1",
            "StorageClass",
            storage_class,
            provisioner="kubernetes.io/no-provisioner",
            reclaimPolicy="Retain",
            volumeBindingMode="WaitForFirstConsumer",
        )
    ]

    def add(path: str, volume: dict[str, Any], name: str, place: str, claim: bool = True) -> None:
        tag = _tag(volume["filestoreDeviceName"], f"{path}.filestoreDeviceName")
        expressions = places[place]["matchExpressions"]
        if not expressions:
            raise ChartError(
                f"storage.{place}.matchExpressions: [] matches no node; name the nodes that mount "
                f"volume '{name}'"
            )
        objects.append(
            _volume(release, name, volume["size"], tag, storage_class, expressions, claim)
        )
        if claim:
            objects.append(_claim(release, name, volume["size"], storage_class))
        objects.append(_mount(release, name, tag, places[place]))

    add("volume.jail", volumes["jail"], volumes["jail"]["name"], "jail")
    spool = volumes["controllerSpool"]
    add("volume.controllerSpool", spool, spool["name"], "controllerSpool")
    if volumes["accounting"]["enabled"]:
        if "size" not in volumes["accounting"]:
            raise ChartError("volume.accounting.size: is required when accounting is enabled")
        # The real chart makes no claim for it: the MariaDB operator does.
        accounting = volumes["accounting"]
        add("volume.accounting", accounting, accounting["name"], "accounting", claim=False)
    for index, submount in enumerate(volumes["jailSubMounts"]):
        path = f"volume.jailSubMounts[{index}]"
        add(path, submount, f"jail-submount-{_tag(submount['name'], f'{path}.name')}", "jail")
    return objects


def _tag(value: str, path: str) -> str:
    """The value, if the real chart's kebab filter would leave it alone."""
    if not _TAG.fullmatch(str(value)):
        raise ChartError(
            f"{path}: {value!r} would be rewritten by the chart and name another filesystem; "
            "use a-z, 0-9 and '-' only"
        )
    return str(value)


def _volume(
    release: Release,
    name: str,
    size: str,
    tag: str,
    storage_class: str,
    expressions: list[Any],
    claim: bool,
) -> Object:
    spec: dict[str, Any] = {
        "storageClassName": storage_class,
        "volumeMode": "Filesystem",
        "mountOptions": ["rw", "relatime", "exec"],
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "local": {"path": f"/mnt/{name}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
    }
    if claim:
        spec["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": release.namespace,
            "name": f"{name}-pvc",
        }
    metadata = {"annotations": {MOUNT_TAG: tag}}
    return release.cluster_object(
        "v1", "PersistentVolume", f"{name}-pv", metadata=metadata, spec=spec
    )


def _claim(release: Release, name: str, size: str, storage_class: str) -> Object:
    return release.object(
        "v1",
        "PersistentVolumeClaim",
        f"{name}-pvc",
        # The chart marks the jail's claim for k8up, and no other.
        metadata={"annotations": {"k8up.io/backup": "true"}} if name == "jail" else {},
        spec={
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteMany"],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": size}},
        },
    )


def _mount(release: Release, name: str, tag: str, place: dict[str, Any]) -> Object:
    """The DaemonSet that keeps /mnt/<name> mounted on every node of `place`."""
    labels = {"slurm": f"{name}-mount"}
    mount = (
        f"mountpoint -q /host/mnt/{name} || mount -t virtiofs -o rw,relatime {tag} /host/mnt/{name}"
    )
    term = {"matchExpressions": place["matchExpressions"]}
    pod = {
        "containers": [
            {
                "name": "mount",
                "image": "cr.eu-north1.nebius.cloud/soperator/busybox",
                "command": ["/bin/sh", "-c", f"while true; do {mount}; sleep 60; done"],
                "securityContext": {"privileged": True},
                "volumeMounts": [
                    {
                        "name": "host-mount",
                        "mountPath": "/host/mnt",
                        "mountPropagation": "Bidirectional",
                    }
                ],
            }
        ],
        "volumes": [{"name": "host-mount", "hostPath": {"path": "/mnt"}}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}
            }
        },
        "tolerations": place["tolerations"],
    }
    return release.object(
        "apps/v1",
        "DaemonSet",
        f"{name}-mount",
        spec={
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    )
