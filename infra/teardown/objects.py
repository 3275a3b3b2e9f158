"""Removes from one kube cluster what no Pulumi resource owns and what would outlive or block it.

In this order: admission webhooks of our namespaces, which refuse deletions once nothing answers
them; disruption budgets, which stop drains; load balancers, which hold the login address; claims,
whose disks cost money after the cluster. Touches our namespaces only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.kube.client import KubeClient, Object
from infra.kube.describe import describe
from infra.kube.errors import KubeError, WaitTimeoutError

CSI_DRIVER: Final = "compute.csi.nebius.com"
"""Driver whose volumes are Nebius disks (storage classes `compute-csi-*` of mk8s)."""
_WEBHOOKS: Final = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_GONE_S: Final = 300.0
"""Longest wait for one object; a load balancer takes minutes (the recipe waits five)."""
_HELD_S: Final = 60.0
"""After this a finalizer counts as orphaned: its controller went with the releases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Waits for one object in seconds."""

    gone_s: float = _GONE_S
    held_s: float = _HELD_S


class Cleaner:
    """Removal from one cluster."""

    def __init__(
        self,
        client: KubeClient,
        namespaces: Sequence[str],
        *,
        cancelled: threading.Event,
        say: Callable[[str], None],
        limits: Limits | None = None,
    ) -> None:
        self._client = client
        self._namespaces = frozenset(namespaces)
        self._cancelled = cancelled
        self._say = say
        self._limits = limits or Limits()

    def disks(self) -> list[str]:
        """Ids of the Nebius disks behind our claims that shall go with them."""
        return sorted(
            {
                volume["spec"]["csi"]["volumeHandle"]
                for volume in self._volumes()
                if volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
            }
        )

    def clean(self) -> int:
        """Removes everything in its order; how many objects went."""
        removed = 0
        for found in (self._webhooks, self._budgets, self._balancers, self._claims):
            targets = list(found())
            for target in targets:
                self._client.delete(target)
            for target in targets:
                self._await_end(target)
                self._say(f"removed {describe(target)}")
            removed += len(targets)
        return removed

    def left(self) -> list[str]:
        """What is still there, a line each."""
        found = (*self._webhooks(), *self._budgets(), *self._balancers(), *self._claims())
        return [describe(target) for target in found]

    def _webhooks(self) -> Iterator[Object]:
        for kind in _WEBHOOKS:
            for one in self._list("admissionregistration.k8s.io/v1", kind):
                services = (hook["clientConfig"].get("service") for hook in one.get("webhooks", []))
                if any(
                    service and service["namespace"] in self._namespaces for service in services
                ):
                    yield one

    def _budgets(self) -> Iterator[Object]:
        yield from self._ours("policy/v1", "PodDisruptionBudget")

    def _balancers(self) -> Iterator[Object]:
        for service in self._ours("v1", "Service"):
            if service["spec"].get("type") == "LoadBalancer":
                yield service

    def _claims(self) -> Iterator[Object]:
        yield from self._ours("v1", "PersistentVolumeClaim")

    def _volumes(self) -> Iterator[Object]:
        for volume in self._list("v1", "PersistentVolume"):
            claim = volume["spec"].get("claimRef") or {}
            csi = volume["spec"].get("csi") or {}
            if csi.get("driver") == CSI_DRIVER and claim.get("namespace") in self._namespaces:
                yield volume

    def _ours(self, api_version: str, kind: str) -> Iterator[Object]:
        for one in self._list(api_version, kind):
            if one["metadata"].get("namespace") in self._namespaces:
                yield one

    def _list(self, api_version: str, kind: str) -> list[Object]:
        return self._client.list(api_version, kind)

    def _await_end(self, target: Object) -> None:
        """Waits for the end of an object; frees it from finalizers that nobody serves any more."""
        limits = self._limits
        held_s = limits.held_s if self._is_served() else 0.0
        try:
            self._gone(target, held_s)
            return
        except WaitTimeoutError:
            live = self._client.get(target)
        if live is not None and live["kind"] == "PersistentVolumeClaim" and not self._is_used(live):
            self._free(live)
        self._gone(target, limits.gone_s)

    def _gone(self, target: Object, timeout_s: float) -> None:
        self._client.wait_gone(target, timeout_s=timeout_s, cancelled=self._cancelled)

    def _is_served(self) -> bool:
        """Whether somebody takes Kubernetes' own finalizers off."""
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "kube-controller-manager", "namespace": "kube-system"},
        }
        return self._client.get(lease) is not None

    def _is_used(self, claim: Object) -> bool:
        """Whether a pod still mounts the claim."""
        place = claim["metadata"]
        for pod in self._client.list("v1", "Pod", place["namespace"]):
            for volume in pod["spec"].get("volumes") or []:
                own: dict[str, Any] = volume.get("persistentVolumeClaim") or {}
                if own.get("claimName") == place["name"]:
                    return True
        return False

    def _free(self, live: Object) -> None:
        held = ", ".join(live["metadata"].get("finalizers", []))
        self._say(f"{describe(live)}: no pod uses it, taking {held} away")
        try:
            self._client.merge_patch(live, {"metadata": {"finalizers": None}})
        except KubeError as error:
            if error.status != 404:
                raise
