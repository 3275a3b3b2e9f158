"""The folder of this machine behind a claim that a k8up job mounts, and why there is none.

Owns the way over the claim's volume and a node whose taints the job's PodConfig tolerates, as the
pod of the job would be placed. Makes no folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from infra.kube.scheduling import Scheduler
from infra.local.reconcile.snapshot import Object, Snapshot, name_of
from infra.local.reconcile.volumes import Places, UnboundError, bound_volume, filesystem_folder


def claim_folder(
    name: str,
    namespace: str,
    *,
    snapshot: Snapshot,
    places: Places,
    rules: Mapping[str, Any],
) -> Path:
    """The folder; `rules` holds the tolerations of the job's pod. Raises UnboundError."""
    claim = snapshot.find("PersistentVolumeClaim", name, namespace)
    if claim is None:
        raise UnboundError(f"persistentvolumeclaim '{name}' not found")
    volume = bound_volume(claim, snapshot)
    if volume is None:
        raise UnboundError(f"persistentvolumeclaim '{name}' is not bound to a PersistentVolume")
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": volume["spec"]["nodeAffinity"][
                "required"
            ]
        }
    }
    node, problem = Scheduler(snapshot.all("Node")).place({**rules, "affinity": affinity})
    if node is None:
        raise UnboundError(problem)
    return _on_node(volume, node, snapshot, places)


def _on_node(volume: Object, node: Object, snapshot: Snapshot, places: Places) -> Path:
    host_path = volume["spec"].get("hostPath")
    if host_path is None:
        return filesystem_folder(volume, node, places)
    # A folder of the node that lies on another volume's mount.
    path = PurePosixPath(host_path["path"])
    for other in snapshot.all("PersistentVolume"):
        mount = (other["spec"].get("local") or {}).get("path")
        if mount is not None and path.is_relative_to(mount):
            return filesystem_folder(other, node, places) / path.relative_to(mount)
    raise UnboundError(f"PersistentVolume {name_of(volume)}: {path} is on no filesystem")
