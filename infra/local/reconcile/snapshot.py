"""What the API server holds at one moment; Slurm's settings and the jail's files by it.

Pods here take `/etc` and the like from this machine, so of the files of JailedConfigs only those
under folders that come from the jail (`/root`, `/srv`, `/mnt`) are seen by users; the others lie in
the jail all the same.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from infra.clients.kube import KubeClient
from infra.clients.kube_rules import Object, name_of
from infra.local.slurm.conf import Partition, SlurmSettings, WorkerNode
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

    @classmethod
    def read(cls, client: KubeClient) -> Snapshot:
        """The live objects."""
        return cls.of(item for version, kind in _KINDS for item in client.list(version, kind))

    @classmethod
    def of(cls, objects: Iterable[Object]) -> Snapshot:
        """A snapshot of these objects."""
        by_kind: dict[str, list[Object]] = {kind: [] for _, kind in _KINDS}
        for item in objects:
            by_kind[item["kind"]].append(item)
        for items in by_kind.values():
            items.sort(key=lambda item: (item["metadata"].get("namespace", ""), name_of(item)))
        return cls(by_kind=by_kind)

    def versions(self) -> frozenset[str]:
        """Name and version of every object: two equal sets are the same objects, unchanged."""
        heads = (item["metadata"] for items in self.by_kind.values() for item in items)
        return frozenset(f"{head['uid']} {head['resourceVersion']}" for head in heads)

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
                _write(jail, item["path"], data[item["key"]], mode)


def _write(jail: Path, path: str, text: str, mode: int) -> None:
    target = jail / path.lstrip("/")
    if not target.resolve().is_relative_to(jail.resolve()):
        return  # a link or `..` leads out of the jail
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_text() != text:
        target.write_text(text)
    target.chmod(mode)
