"""What a pod's volume sources stand for on this machine.

Owns the way from a claim over its PersistentVolume and the node's attached filesystems to a folder,
as virtiofs tags are followed on the cloud. Makes no folder: it says which one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.local.kube.charts.release import MADE_FOLDERS, MOUNT_TAG
from infra.local.reconcile.quantity import quantity
from infra.local.reconcile.scheduling import matches_terms
from infra.local.reconcile.snapshot import Object, Snapshot, annotation, name_of, secret_data

FILESYSTEMS: Final = "local.soperator/filesystems"
"""Annotation of a Node: mount_tag=filesystem id, comma separated."""
_DEFAULT_SHM: Final = "64Gi"
_FOLDERS: Final = "madeFolders"


class UnboundError(Exception):
    """A volume that the pod waits for; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A folder of this machine, a tmpfs, or files that must be written first."""

    folder: Path | None = None
    tmpfs_bytes: int | None = None
    files: tuple[tuple[str, bytes], ...] = ()
    file_mode: int = 0o644
    made_folders: tuple[str, ...] = ()
    """Folders in it that everybody may write to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where volumes live."""

    filesystems: Path
    """Folder of the Nebius filesystems, by id."""
    pods: Path
    """Folder of what a pod keeps for itself, by pod."""


def resolve(
    source: Mapping[str, Any],
    name: str,
    *,
    pod: str,
    namespace: str,
    node: Object,
    snapshot: Snapshot,
    places: Places,
) -> Volume:
    """The volume behind a source; raises UnboundError where the pod would wait."""
    own = places.pods / pod / "volumes" / name
    if claim := source.get("persistentVolumeClaim"):
        return Volume(folder=_claimed(claim["claimName"], namespace, node, snapshot, places))
    if (empty := source.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return Volume(tmpfs_bytes=int(quantity(empty.get("sizeLimit", _DEFAULT_SHM))))
        return Volume(folder=own)
    if "ephemeral" in source or "volumeClaimTemplateSpec" in source:
        return Volume(folder=own, made_folders=tuple(source.get(_FOLDERS, ())))
    if (config := source.get("configMap")) is not None:
        return _config_files(config, own, namespace, snapshot)
    if (secret := source.get("secret")) is not None:
        return _secret_files(secret, own, namespace, snapshot)
    if nfs := source.get("nfs"):
        return Volume(folder=_exported(nfs, places))
    kinds = ", ".join(source) or "nothing"
    raise UnboundError(f"volume '{name}': {kinds} cannot be mounted on the local stack")


def _exported(nfs: Mapping[str, Any], places: Places) -> Path:
    """The folder that stands for a server's export: no machine runs here, its files do."""
    return places.filesystems / f"nfs-{nfs['server']}{nfs['path'].replace('/', '-')}"


def own_source(mount: Mapping[str, Any], nodeset: Object) -> Mapping[str, Any]:
    """The source of a worker's mount: given in it, else a disk of its own with its folders."""
    given = mount.get("volumeSource")
    if given:
        return given
    entries = (entry.partition("=") for entry in annotation(nodeset, MADE_FOLDERS).split(","))
    made = {volume: folders.split(":") for volume, _, folders in entries if folders}
    return {"ephemeral": {}, _FOLDERS: made.get(mount["name"], [])}


def bound_volume(claim: Object, snapshot: Snapshot) -> Object | None:
    """The PersistentVolume that a claim is bound to: one that names it and offers enough."""
    namespace, name = claim["metadata"]["namespace"], name_of(claim)
    wanted = claim["spec"]
    for volume in snapshot.all("PersistentVolume"):
        spec = volume["spec"]
        reference = spec.get("claimRef") or {}
        if (reference.get("namespace"), reference.get("name")) != (namespace, name):
            continue
        size = quantity(wanted["resources"]["requests"]["storage"])
        if (
            spec.get("storageClassName", "") == wanted.get("storageClassName", "")
            and set(wanted["accessModes"]) <= set(spec["accessModes"])
            and quantity(spec["capacity"]["storage"]) >= size
        ):
            return volume
    return None


def filesystem_folder(volume: Object, node: Object, places: Places) -> Path:
    """The folder of the filesystem that the node has under the volume's mount tag."""
    tag = annotation(volume, MOUNT_TAG)
    if not tag:
        raise UnboundError(f"PersistentVolume {name_of(volume)} has no mount tag of a filesystem")
    required = ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get(
        "nodeSelectorTerms"
    )
    labels = node["metadata"].get("labels") or {}
    if required and not matches_terms(labels, required):
        raise UnboundError(
            f"node {name_of(node)} does not match the node affinity of PersistentVolume "
            f"{name_of(volume)}"
        )
    attached = dict(
        item.split("=", 1) for item in annotation(node, FILESYSTEMS).split(",") if "=" in item
    )
    if tag not in attached:
        known = ", ".join(sorted(attached)) or "none"
        raise UnboundError(
            f"node {name_of(node)} has no filesystem with mount tag '{tag}' (has: {known}); "
            "attach it to the node group"
        )
    return places.filesystems / attached[tag]


def _claimed(name: str, namespace: str, node: Object, snapshot: Snapshot, places: Places) -> Path:
    claim = snapshot.find("PersistentVolumeClaim", name, namespace)
    if claim is None:
        raise UnboundError(f"persistentvolumeclaim '{name}' not found")
    volume = bound_volume(claim, snapshot)
    if volume is None:
        raise UnboundError(f"persistentvolumeclaim '{name}' is not bound to a PersistentVolume")
    return filesystem_folder(volume, node, places)


def _config_files(
    config: Mapping[str, Any], own: Path, namespace: str, snapshot: Snapshot
) -> Volume:
    found = snapshot.find("ConfigMap", config.get("name", ""), namespace)
    if found is None and not config.get("optional"):
        raise UnboundError(f"configmap '{config.get('name', '')}' not found")
    data = {key: text.encode() for key, text in ((found or {}).get("data") or {}).items()}
    return _files(data, config, own)


def _secret_files(
    secret: Mapping[str, Any], own: Path, namespace: str, snapshot: Snapshot
) -> Volume:
    found = snapshot.find("Secret", secret.get("secretName", ""), namespace)
    if found is None and not secret.get("optional"):
        raise UnboundError(f"secret '{secret.get('secretName', '')}' not found")
    return _files(secret_data(found) if found else {}, secret, own)


def _files(data: Mapping[str, bytes], source: Mapping[str, Any], own: Path) -> Volume:
    items = source.get("items")
    if items:
        data = {item["path"]: data[item["key"]] for item in items if item["key"] in data}
    mode = source.get("defaultMode", 0o644)
    return Volume(folder=own, files=tuple(sorted(data.items())), file_mode=mode)
