"""What the API server holds at one moment; Slurm's settings, the jail's files and volumes by it.

Pods here take `/etc` and the like from this machine, so of the files of JailedConfigs only those
under folders that come from the jail (`/root`, `/srv`, `/mnt`) are seen by users; the others lie in
the jail all the same.

A claim leads over its PersistentVolume and the node's attached filesystems to a folder of this
machine, as virtiofs tags are followed on the cloud. No folder is made here: it is said which one.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from infra.clients import kube_rules
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Object, name_of, quantity
from infra.local.kube.values import MOUNT_TAG
from infra.local.slurm.daemons import Partition, SlurmSettings, WorkerNode
from infra.providers.soperator.teardown import CSI_DRIVER
from infra.state import Ports

_KINDS = (
    ("slurm.nebius.ai/v1", "SlurmCluster"),
    ("slurm.nebius.ai/v1alpha1", "NodeSet"),
    ("slurm.nebius.ai/v1alpha1", "NodeSetPowerState"),
    ("slurm.nebius.ai/v1alpha1", "JailedConfig"),
    ("v1", "Node"),
    ("v1", "PersistentVolume"),
    ("v1", "PersistentVolumeClaim"),
    ("v1", "Secret"),
    ("v1", "ConfigMap"),
    ("v1", "Namespace"),
    ("v1", "Pod"),
    ("storage.k8s.io/v1", "StorageClass"),
    ("apps.kruise.io/v1beta1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("apps/v1", "StatefulSet"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Objects by kind."""

    by_kind: dict[str, list[Object]] = field(default_factory=dict)
    revision: str = ""

    @classmethod
    def read(cls, client: KubeClient, last: Snapshot) -> Snapshot:
        """The live objects: those of the last time where nothing at all has changed since."""
        revision = client.revision()  # first, so that what changes meanwhile is read again
        if revision == last.revision:
            return last
        objects = (item for version, kind in _KINDS for item in client.list(version, kind))
        return replace(cls.of(objects), revision=revision)

    @classmethod
    def of(cls, objects: Iterable[Object]) -> Snapshot:
        """A snapshot of these objects."""
        by_kind: dict[str, list[Object]] = {kind: [] for _, kind in _KINDS}
        for item in objects:
            by_kind[item["kind"]].append(item)
        for items in by_kind.values():
            items.sort(key=lambda item: (item["metadata"].get("namespace", ""), name_of(item)))
        return cls(by_kind=by_kind)

    def all(self, kind: str, namespace: str | None = None) -> list[Object]:
        """Objects of a kind that are not being deleted, of one namespace or of all."""
        return [
            item
            for item in self.by_kind.get(kind, [])
            if namespace in (None, item["metadata"].get("namespace"))
            and "deletionTimestamp" not in item["metadata"]
        ]

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object of that name, or None."""
        found = (item for item in self.all(kind, namespace) if name_of(item) == name)
        return next(found, None)


def annotation(item: Object, key: str) -> str:
    """An annotation's value; empty where there is none."""
    return (item["metadata"].get("annotations") or {}).get(key, "")


def digest(value: Any) -> str:
    """Changes with the value."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def secret_data(secret: Object) -> dict[str, bytes]:
    """A Secret's decoded entries."""
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


TOPOLOGY_LABELS: Final = ("topology.nebius.com/tier-0", "topology.nebius.com/tier-1")


def topology_problem(cluster: Mapping[str, Any], nodeset: Mapping[str, Any], node: Object) -> str:
    """Why a worker of these specs does not come up on the node; empty where it does."""
    plugin = (cluster.get("slurmConfig") or {}).get("topologyPlugin", "topology/tree")
    labels = node["metadata"].get("labels") or {}
    has_gpu = (nodeset.get("gpu") or {}).get("enabled")
    if not plugin or not has_gpu or any(label in labels for label in TOPOLOGY_LABELS):
        return ""
    return (
        f"worker-init waits for the label {TOPOLOGY_LABELS[0]} on node {name_of(node)}, which "
        f"only InfiniBand nodes get; set slurmConfig.topologyPlugin to '' (is '{plugin}')"
    )


# The operator writes topology.conf from labels of the nodes, which are none of one machine.
_NOT_HERE: Final = ("TopologyPlugin", "TopologyParam")
_DEFAULT_PARTITIONS: Final = (
    Partition(
        name="main",
        config="Default=YES PriorityTier=10 MaxTime=INFINITE State=UP OverSubscribe=YES",
    ),
    Partition(
        name="hidden",
        config="Default=NO PriorityTier=10 PreemptMode=OFF Hidden=YES MaxTime=INFINITE State=UP "
        "OverSubscribe=YES",
    ),
)


def slurm_settings(
    cluster: Object, workers: tuple[WorkerNode, ...], ports: Ports, *, accounting: bool
) -> SlurmSettings:
    """Settings of the cluster with these workers; `accounting` says whether it has a database."""
    spec = cluster["spec"]
    partitions = spec.get("partitionConfiguration") or {}
    kind = partitions.get("configType", "default")
    gather = (spec["slurmNodes"].get("accounting") or {}).get("slurmConfig") or {}
    # The lines of partitions; the operator leaves any other out.
    lines = (line.strip() for line in partitions.get("rawConfig") or ())
    raw = tuple(line for line in lines if line.startswith("PartitionName"))
    return SlurmSettings(
        cluster=name_of(cluster),
        namespace=cluster["metadata"]["namespace"],
        slurmctld_port=ports.slurmctld,
        slurmdbd_port=ports.slurmdbd,
        mariadb_port=ports.mariadb,
        workers=workers,
        declares_nodes=kind == "structured",
        partitions=_partitions(kind, partitions),
        raw_partitions=raw if kind == "custom" else (),
        accounting=accounting,
        accounting_config=_properties(gather),
        slurm_config=_properties(spec.get("slurmConfig") or {}),
        health_check=spec.get("healthCheckConfig"),
        custom=spec.get("customSlurmConfig", ""),
    )


def _properties(config: Mapping[str, str | int]) -> dict[str, str | int]:
    """The values under Slurm's names, as the operator writes them: all but empty texts."""
    named = {key[0].upper() + key[1:]: value for key, value in config.items() if value != ""}
    return {key: value for key, value in sorted(named.items()) if key not in _NOT_HERE}


def _partitions(kind: str, configuration: Mapping[str, Any]) -> tuple[Partition, ...]:
    if kind == "default":
        return _DEFAULT_PARTITIONS
    if kind == "custom":
        return ()
    return tuple(
        Partition(
            name=item["name"],
            config=item.get("config", ""),
            nodesets=None if item.get("isAll") else tuple(item.get("nodeSetRefs") or ()),
        )
        for item in configuration.get("partitions") or []
    )


_MODE: Final = 0o644


def write_jail_files(snapshot: Snapshot, cluster: Object, jail: Path) -> None:
    """Write what the JailedConfigs beside the cluster name; equal files are left alone."""
    namespace = cluster["metadata"]["namespace"]
    for config in snapshot.all("JailedConfig", namespace):
        spec: dict[str, Any] = config["spec"]
        texts = snapshot.find("ConfigMap", spec["configMap"]["name"], namespace)
        data = (texts or {}).get("data") or {}
        for item in spec.get("items") or []:
            if item["key"] in data:
                mode = item.get("mode", spec.get("defaultMode", _MODE))
                text, target = data[item["key"]], jail / item["path"].lstrip("/")
                if not target.resolve().is_relative_to(jail.resolve()):
                    continue  # a link or `..` leads out of the jail
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.is_file() or target.read_text() != text:
                    target.write_text(text)
                target.chmod(mode)


FILESYSTEMS: Final = "local.soperator/filesystems"
"""Annotation of a Node: mount_tag=filesystem id, comma separated."""
_DEFAULT_SHM: Final = "64Gi"
_FOLDERS: Final = "madeFolders"


_DISK_CLASSES: Final = frozenset(
    (
        "compute-csi-default-sc",
        *(
            f"compute-csi-{disk}-{filesystem}"
            for disk in ("network-ssd", "network-ssd-non-replicated", "network-ssd-io-m3")
            for filesystem in ("ext4", "xfs")
        ),
    )
)
"""Classes of the cloud's own disks: the default of mk8s, and those of helm-storageclasses 4.1.7.

Their objects are not here: the charts of others have no content on the local stack.
"""


class Held(StrEnum):
    """What keeps a pod from starting, as the reason of the event that tells of it."""

    SCHEDULING = "FailedScheduling"
    MOUNTING = "FailedMount"
    STARTING = "Failed"
    CREATING = "FailedCreate"
    WAITING = ""
    """An init container waits for something else; no event tells of it."""


class UnboundError(Exception):
    """A volume that the pod waits for; the message says what is missing."""

    def __init__(self, message: str, held: Held = Held.MOUNTING) -> None:
        super().__init__(message)
        self.held = held


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
        wanted = claim["claimName"]
        check_claim({"metadata": {"name": wanted}}, namespace, snapshot)
        found = snapshot.find("PersistentVolumeClaim", wanted, namespace)
        volume = None if found is None else bound_volume(found, snapshot)
        return Volume(folder=own if volume is None else filesystem_folder(volume, node, places))
    if (empty := source.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return Volume(tmpfs_bytes=int(quantity(empty.get("sizeLimit", _DEFAULT_SHM))))
        return Volume(folder=own)
    if "ephemeral" in source:
        return Volume(folder=own, made_folders=tuple(source.get(_FOLDERS, ())))
    check_files({**source, "name": name}, namespace, snapshot)
    for part, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if (given := source.get(part)) is not None:
            files = tuple(sorted(_payload(given, kind, namespace, snapshot).items()))
            return Volume(folder=own, files=files, file_mode=given.get("defaultMode", 0o644))
    if nfs := source.get("nfs"):
        # A server's export: no machine runs here, its files do.
        export = f"nfs-{nfs['server']}{nfs['path'].replace('/', '-')}"
        return Volume(folder=places.filesystems / export)
    kinds = ", ".join(source) or "nothing"
    raise UnboundError(f"volume '{name}': {kinds} cannot be mounted on the local stack")


_MAKER: Final = "make-folders-"
"""Init container that makes the folders of the volume that its name ends with."""


def own_source(name: str, source: Object) -> Mapping[str, Any]:
    """A disk of the pod's own, with the folders that an init container of its NodeSet makes."""
    containers = source["spec"].get("customInitContainers") or ()
    made = (each["command"][4:] for each in containers if each["name"] == f"{_MAKER}{name}")
    return {"ephemeral": {}, _FOLDERS: next(made, [])}


def bound_volume(claim: Object, snapshot: Snapshot) -> Object | None:
    """The PersistentVolume of a claim, where there is one for it."""
    return kube_rules.best(snapshot.all("PersistentVolume"), claim)


def is_made_on_demand(claim: Object, snapshot: Snapshot) -> bool:
    """Whether a driver makes the claim's disk, rather than a volume that is there being taken.

    A disk is mounted by one node.
    """
    name = claim["spec"].get("storageClassName", "compute-csi-default-sc")
    known = snapshot.find("StorageClass", name)
    if known is not None and known["provisioner"] != CSI_DRIVER:
        return known["provisioner"] != kube_rules.MANUAL
    is_disk = known is not None or name in _DISK_CLASSES
    return is_disk and set(claim["spec"].get("accessModes", ())) <= kube_rules.DISK_MODES


def filesystem_folder(volume: Object, node: Object, places: Places) -> Path:
    """The folder of the filesystem that the node has under the volume's mount tag."""
    tag = annotation(volume, MOUNT_TAG)
    if not tag:
        raise UnboundError(f"PersistentVolume {name_of(volume)} has no mount tag of a filesystem")
    if not kube_rules.is_seen(volume, node):
        raise UnboundError(
            f"1 node(s) had volume node affinity conflict: {name_of(node)} and PersistentVolume "
            f"{name_of(volume)}",
            Held.SCHEDULING,
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


def claims(
    volumes: Sequence[Mapping[str, Any]], templates: Mapping[str, Mapping[str, Any]], pod: str
) -> Iterator[Object]:
    """Every claim of a pod: by its name alone, or with what makes it where it is not there yet."""
    for name, spec in templates.items():
        yield {"metadata": {"name": f"{name}-{pod}"}, "spec": spec}
    for each in volumes:
        if (claim := each.get("persistentVolumeClaim")) is not None:
            yield {"metadata": {"name": claim["claimName"]}}
        elif (template := (each.get("ephemeral") or {}).get("volumeClaimTemplate")) is not None:
            yield {"metadata": {"name": f"{pod}-{each['name']}"}, "spec": template["spec"]}


def check_claim(wanted: Object, namespace: str, snapshot: Snapshot) -> None:
    """Raises what the scheduler says of a claim that is not there, or that nothing can serve."""
    name = name_of(wanted)
    claim = snapshot.find("PersistentVolumeClaim", name, namespace)
    if claim is None and "spec" not in wanted:
        raise UnboundError(f'persistentvolumeclaim "{name}" not found', Held.SCHEDULING)
    made = claim or {**wanted, "metadata": {"name": name, "namespace": namespace}}
    if bound_volume(made, snapshot) is None and not is_made_on_demand(made, snapshot):
        # What the scheduler says of a pod whose claim has no volume.
        known = snapshot.find("StorageClass", made["spec"].get("storageClassName", ""))
        words = "pod has unbound immediate PersistentVolumeClaims"
        if (known or {}).get("volumeBindingMode") == "WaitForFirstConsumer":
            words = "1 node(s) didn't find available persistent volumes to bind"
        raise UnboundError(f"{words} ({name})", Held.SCHEDULING)


def check_files(volume: Mapping[str, Any], namespace: str, snapshot: Snapshot) -> None:
    """Raises what a kubelet says of a Secret or ConfigMap that is not there or lacks a key.

    The words of pkg/volume/{secret,configmap} of Kubernetes v1.36.
    """
    for kind, given in kube_rules.file_sources(volume):
        try:
            _payload(given, kind, namespace, snapshot)
        except UnboundError as error:
            text = f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
            raise UnboundError(text) from error


def check_subpaths(
    container: Mapping[str, Any],
    volumes: Mapping[str, Mapping[str, Any]],
    namespace: str,
    snapshot: Snapshot,
) -> None:
    """Raises where a mount takes a file that its ConfigMap or Secret does not have.

    The kubelet makes a folder of that name (pkg/kubelet/kubelet_pods.go, v1.36), and the runtime
    cannot mount it over a file.
    """
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        for part, kind in (("secret", "Secret"), ("configMap", "ConfigMap")):
            given, path = volume.get(part), mount.get("subPath")
            if given is None or not path:
                continue
            if path not in _payload(given, kind, namespace, snapshot):
                raise UnboundError(
                    f'error mounting "{path}" of {kind.lower()} '
                    f'"{given.get("secretName") or given.get("name")}" to rootfs at '
                    f'"{mount["mountPath"]}": not a directory',
                    Held.STARTING,
                )


def _payload(
    source: Mapping[str, Any], kind: str, namespace: str, snapshot: Snapshot
) -> dict[str, bytes]:
    """File -> content; a key that `items` names must be there unless the source is optional."""
    name = source.get("secretName") or source.get("name", "")
    found = snapshot.find(kind, name, namespace)
    if found is None:
        if source.get("optional"):
            return {}
        raise UnboundError(f'{kind.lower()} "{name}" not found')
    if kind == "Secret":
        data = secret_data(found)
    else:
        data = {key: text.encode() for key, text in (found.get("data") or {}).items()}
        binary = found.get("binaryData") or {}
        data |= {key: base64.b64decode(text) for key, text in binary.items()}
    items = source.get("items")
    if not items:
        return data
    for item in items:
        if item["key"] not in data and not source.get("optional"):
            word = "secret" if kind == "Secret" else "config"
            raise UnboundError(f"references non-existent {word} key: {item['key']}")
    return {item["path"]: data[item["key"]] for item in items if item["key"] in data}
