"""A small Kubernetes client: server-side apply, read, list, delete, wait.

Owns discovery of the kinds and one-line errors. Objects are plain JSON mappings. Neither the
`kubernetes` package nor httpx is used: their imports take 0.6 s and 0.25 s of every preview.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from infra.kube.connection import Connection
from infra.kube.describe import Object, describe, finalizers, summary
from infra.kube.errors import (
    CancelledError,
    KubeError,
    WaitTimeoutError,
)
from infra.kube.kubeconfig import Access

FIELD_MANAGER: Final = "pulumi"
_POLL_S: Final = 0.25
_QUIET_S: Final = 5.0
"""A wait that ends sooner is no news."""


class KubeClient:
    """Requests to one API server; safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._connection = Connection(access)
        self._kinds: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        self._connection.close()

    def version(self) -> str:
        """The API server's version; raises UnreachableError where there is none."""
        return self._connection.request("GET", "/version")["gitVersion"]

    def is_ready(self) -> bool:
        """Whether the API server calls itself ready and can read what it stored."""
        # /readyz stays green for a moment after the store is gone: ask for something stored.
        paths = ("/readyz", "/api/v1/namespaces/default")
        return all(self._connection.is_ok(path) for path in paths)

    def apply(
        self,
        target: Object,
        *,
        dry_run: bool = False,
        field_manager: str = FIELD_MANAGER,
        force: bool = True,
    ) -> Object:
        """Server-side apply; with `force` it takes over fields of others. The object afterwards."""
        params = {"fieldManager": field_manager, "fieldValidation": "Strict"}
        params["force"] = "true" if force else "false"
        if dry_run:
            params["dryRun"] = "All"
        return self._connection.request(
            "PATCH",
            self.path(target),
            params=params,
            body=json.dumps(target).encode(),
            content_type="application/apply-patch+yaml",
            subject=describe(target),
        )

    def create(self, target: Object, *, subresource: str = "", dry_run: bool = False) -> Object:
        """Create the object, or its subresource, and return it as stored.

        With `dry_run` nothing is stored. Refused where it exists already, and where it has an
        unknown field.
        """
        params = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self._connection.request(
            "POST",
            f"{self.path(target)}/{subresource}" if subresource else self._collection(target),
            params=params,
            body=json.dumps(target).encode(),
            subject=describe(target),
        )

    def apply_status(self, target: Object, *, field_manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply of the status subresource."""
        params = {"fieldManager": field_manager, "force": "true"}
        return self._connection.request(
            "PATCH",
            self.path(target) + "/status",
            params=params,
            body=json.dumps(target).encode(),
            content_type="application/apply-patch+yaml",
            subject=describe(target),
        )

    def get(self, target: Object) -> Object | None:
        """The live object of the same kind and name, or None."""
        try:
            return self._connection.request("GET", self.path(target), subject=describe(target))
        except KubeError as error:
            if error.status == 404:
                return None
            raise

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, label: str | None = None
    ) -> list[Object]:
        """The live objects of a kind, in one namespace or in all."""
        probe: Object = {"apiVersion": api_version, "kind": kind, "metadata": {}}
        if namespace is not None:
            probe["metadata"]["namespace"] = namespace
        params = {"labelSelector": label} if label else {}
        path = self._collection(probe, everywhere=namespace is None)
        found = self._connection.request("GET", path, params=params)
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found["items"]]

    def delete(self, target: Object, *, grace_s: int | None = None) -> bool:
        """Ask for the object's end; False if it is gone already."""
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body = json.dumps(options).encode()
        try:
            self._connection.request(
                "DELETE", self.path(target), body=body, subject=describe(target)
            )
        except KubeError as error:
            if error.status == 404:
                return False
            raise
        return True

    def merge_patch(self, target: Object, patch: Object, *, subresource: str = "") -> Object:
        """JSON merge patch of the object, or of one of its subresources."""
        return self._connection.request(
            "PATCH",
            self.path(target) + (f"/{subresource}" if subresource else ""),
            body=json.dumps(patch).encode(),
            content_type="application/merge-patch+json",
            subject=describe(target),
        )

    def finalize_namespace(self, namespace: Object) -> None:
        """Let a deleted namespace end, as the namespace controller does once it is empty."""
        # Without a version: whoever releases it at the same time is no conflict.
        metadata = {"name": namespace["metadata"]["name"]}
        freed = {**namespace, "metadata": metadata, "spec": {"finalizers": []}}
        body = json.dumps(freed).encode()
        try:
            self._connection.request("PUT", self.path(namespace) + "/finalize", body=body)
        except KubeError as error:
            if error.status != 404:
                raise

    def wait_for(
        self,
        target: Object,
        what: str,
        is_met: Callable[[Object], bool],
        *,
        timeout_s: float,
        cancelled: threading.Event | None = None,
        tell: Callable[[str], None] = lambda _line: None,
    ) -> Object:
        """Return the live object once `is_met` holds; a timeout says what its status was.

        `tell` is called with one line whenever the awaited status changes, once the wait is long.
        """
        event = cancelled or threading.Event()
        began = time.monotonic()
        deadline = began + timeout_s
        told = ""
        while True:
            live = self.get(target)
            if live is not None and is_met(live):
                return live
            if event.is_set():
                raise CancelledError(f"{describe(target)}: interrupted while waiting for {what}")
            if time.monotonic() >= deadline:
                raise WaitTimeoutError(
                    f"{describe(target)}: waited {timeout_s:g} s for {what}; {summary(live)}"
                )
            passed_s, now = time.monotonic() - began, summary(live)
            if passed_s > _QUIET_S and now != told:
                told = now
                limit = f"{passed_s:.0f} s of at most {timeout_s:g} s passed"
                tell(f"{describe(target)}: {now}; {limit}")
            event.wait(_POLL_S)

    def wait_gone(
        self, target: Object, *, timeout_s: float, cancelled: threading.Event | None = None
    ) -> None:
        """Return once the object is gone; a timeout names its finalizers."""
        event = cancelled or threading.Event()
        deadline = time.monotonic() + timeout_s
        uid = target.get("metadata", {}).get("uid")
        while True:
            live = self.get(target)
            if live is None or (uid is not None and live["metadata"]["uid"] != uid):
                return
            if event.is_set():
                raise CancelledError(f"{describe(target)}: interrupted while waiting for its end")
            if time.monotonic() >= deadline:
                held = ", ".join(finalizers(live)) or "none"
                raise WaitTimeoutError(
                    f"{describe(target)}: waited {timeout_s:g} s for its end; finalizers: {held}"
                )
            event.wait(_POLL_S)

    def namespaced_kinds(self) -> list[tuple[str, str]]:
        """(apiVersion, kind) of everything that can be listed and deleted in a namespace."""
        groups = self._connection.request("GET", "/apis")["groups"]
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        found = []
        for version in versions:
            for kind in self._connection.request("GET", _group_path(version))["resources"]:
                deletable = {"list", "delete"} <= set(kind["verbs"])
                if kind["namespaced"] and deletable and "/" not in kind["name"]:
                    found.append((version, kind["kind"]))
        return found

    def path(self, target: Object) -> str:
        """The URL path of an object."""
        return f"{self._collection(target)}/{target['metadata']['name']}"

    def is_namespaced(self, target: Object) -> bool:
        """Whether objects of this kind live in a namespace."""
        return bool(self._kind(target)["namespaced"])

    def forget_kinds(self) -> None:
        """Discover the kinds again, after a CRD has been installed."""
        with self._lock:
            self._kinds.clear()

    def _collection(self, target: Object, everywhere: bool = False) -> str:
        kind = self._kind(target)
        base = _group_path(target["apiVersion"])
        if not kind["namespaced"] or everywhere:
            return f"{base}/{kind['name']}"
        namespace = target["metadata"].get("namespace") or self._access.namespace
        return f"{base}/namespaces/{namespace}/{kind['name']}"

    def _kind(self, target: Object) -> dict[str, Any]:
        api_version, kind = target["apiVersion"], target["kind"]
        with self._lock:
            found = self._kinds.get(f"{api_version}/{kind}")
        if found is not None:
            return found
        try:
            resources = self._connection.request("GET", _group_path(api_version))["resources"]
        except KubeError as error:
            if error.status != 404:
                raise
            resources = []
        kinds = {f"{api_version}/{r['kind']}": r for r in resources if "/" not in r["name"]}
        with self._lock:
            self._kinds |= kinds
        if f"{api_version}/{kind}" not in kinds:
            raise KubeError(
                f"{kind} ({api_version}): the API server does not know this kind; "
                "install its CustomResourceDefinition first",
                status=404,
            )
        return kinds[f"{api_version}/{kind}"]


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
