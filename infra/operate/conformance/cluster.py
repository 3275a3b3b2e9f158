"""A real API server that takes what is sent: definitions, objects, what it refuses and why.

Owns the order (namespaces first) and what counts as refused. Whoever calls starts the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.clients.errors import KubeError
from infra.clients.kube import Access, KubeClient
from infra.clients.kube_rules import Object
from infra.providers.soperator.crds import apply_crds

_EXISTS: Final = 409
_WEBHOOKS: Final = "WebhookConfiguration"
# Order of an installation: what others need comes first, the rest stays as it came.
_FIRST: Final = ("Namespace", "PriorityClass", "StorageClass", "Secret", "ConfigMap")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server and the certificate of 127.0.0.1 that its authority signed."""

    access: Access
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What became of objects that were sent."""

    count: int = 0
    refused: tuple[str, ...] = ()
    """Object and the API server's own words."""
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """API version and kind of objects without a definition here, and how many there were."""

    def __add__(self, other: Accepted) -> Accepted:
        return Accepted(
            count=self.count + other.count,
            refused=(*self.refused, *other.refused),
            unknown=self.unknown + other.unknown,
        )


class Cluster:
    """One API server with the definitions of upstream."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient(server.access)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def define(self, definitions: Iterable[Object]) -> None:
        """Installs CustomResourceDefinitions and waits until they are served."""
        apply_crds(self.client, definitions)

    def accept(self, objects: Sequence[Object], namespace: str) -> Accepted:
        """Makes all of them under strict validation; `namespace` is the release's.

        As Helm does: its namespace and no other, a create, and an apply of what is there already.
        Webhooks are left out: nobody answers them before their operator runs.
        """
        self.need_namespace(namespace)
        result = Accepted()
        for each in sorted(objects, key=_rank):
            if not each["kind"].endswith(_WEBHOOKS):
                result += self._accept(each, namespace)
        return result

    def _accept(self, one: Object, namespace: str) -> Accepted:
        try:
            placed = self._placed(one, namespace)
        except KubeError as error:
            if error.status != 404:
                raise
            return Accepted(unknown=Counter([(one["apiVersion"], one["kind"])]))
        try:
            try:
                self.client.create(placed)
            except KubeError as error:
                if error.status != _EXISTS:
                    raise
                self.client.apply(placed)
        except KubeError as error:
            return Accepted(refused=(str(error),))
        return Accepted(count=1)

    def _placed(self, one: Object, namespace: str) -> Object:
        if not self.client.is_namespaced(one):
            return one
        return {**one, "metadata": {"namespace": namespace, **one["metadata"]}}

    def need_namespace(self, name: str) -> None:
        """Makes the namespace where it is missing."""
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        if self.client.get(made) is None:
            self.client.apply(made)


def _rank(one: Object) -> int:
    return _FIRST.index(one["kind"]) if one["kind"] in _FIRST else len(_FIRST)
