"""What the API server holds at one moment, of the kinds that the operator reads."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.kube.client import KubeClient
from infra.kube.describe import Object, name_of

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
