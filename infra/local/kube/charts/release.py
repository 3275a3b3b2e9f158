"""What every renderer needs to know of a release, and the labels that its objects carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Object = dict[str, Any]
"""One Kubernetes object as JSON."""

RECORDED_LABEL: Final = "local.soperator/recorded"
"""On the ConfigMap of a release that was recorded and not rendered."""
MOUNT_TAG: Final = "local.soperator/mount-tag"
"""Annotation of a PersistentVolume: virtiofs tag of the filesystem behind it."""


MADE_FOLDERS: Final = "local.soperator/folders"
"""Annotation of a NodeSet: volume=folder:folder that an init container makes, comma separated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A Helm release."""

    name: str
    namespace: str
    chart: str
    version: str

    @property
    def labels(self) -> dict[str, str]:
        """The labels of every object of the release."""
        return {
            "app.kubernetes.io/name": self.chart.removeprefix("helm-"),
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/managed-by": "Helm",
            "helm.sh/chart": f"{self.chart}-{self.version}",
        }

    def object(self, api_version: str, kind: str, name: str, **body: Any) -> Object:
        """A namespaced object of the release; `metadata` in the body is merged in."""
        extra = body.pop("metadata", {})
        metadata = {"name": name, "namespace": self.namespace, "labels": self.labels, **extra}
        return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}

    def cluster_object(self, api_version: str, kind: str, name: str, **body: Any) -> Object:
        """An object of the release outside any namespace."""
        made = self.object(api_version, kind, name, **body)
        del made["metadata"]["namespace"]
        return made


def resources(values: dict[str, Any]) -> dict[str, str]:
    """A container's resources under their Kubernetes names."""
    names = {"ephemeralStorage": "ephemeral-storage"}
    return {names.get(key, key): str(value) for key, value in values.items()}


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """The mapping without its empty values, as `with` in a chart's template leaves them out."""
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}
