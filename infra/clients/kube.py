"""A small Kubernetes client: kubeconfig, server-side apply, read, list, delete, wait.

Objects are plain JSON mappings. Neither the `kubernetes` package nor httpx is used: their imports
take 0.6 s and 0.25 s of every preview.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from infra.clients.errors import (
    AbsentError,
    CancelledError,
    KubeError,
    UnreachableError,
    WaitTimeoutError,
)
from infra.clients.kube_rules import Object, describe, finalizers, summary
from infra.render.names import kube_object

FIELD_MANAGER: Final = "pulumi"
_POLL_S: Final = 0.25
_QUIET_S: Final = 5.0
"""A wait that ends sooner is no news."""
_AWAY_S: Final = 120.0
"""How long the API server may be silent during a wait."""
_CONNECT_TIMEOUT_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 30.0
_READINESS_TIMEOUT_S: Final = 2.0
_MAX_CONNECTIONS: Final = 16
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_STRICT: Final = {"fieldValidation": "Strict"}
_DRY: Final = {"dryRun": "All"}
_RETRIES: Final = urllib3.Retry(total=1, connect=0, redirect=0, other=0, allowed_methods=None)
"""A connection that the server closed while idle is tried again; every request is idempotent."""


class KubeClient:
    """Requests to one API server; safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self._access = access
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=_REQUEST_TIMEOUT_S)
        self._http = access.pool(maxsize=_MAX_CONNECTIONS, timeout=timeout)
        self._kinds: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def version(self) -> str:
        """The API server's version; raises UnreachableError where there is none."""
        return self._request("GET", "/version")["gitVersion"]

    def is_ready(self) -> bool:
        """Whether the API server calls itself ready and can read what it stored."""
        headers = {"Authorization": f"Bearer {self._access.token()}"}
        how: Any = {"headers": headers, "timeout": _READINESS_TIMEOUT_S, "retries": False}
        # /readyz stays green for a moment after the store is gone: ask for something stored.
        paths = ("/readyz", "/api/v1/namespaces/default")
        try:
            return all(self._http.request("GET", path, **how).status == 200 for path in paths)
        except urllib3.exceptions.HTTPError:
            return False

    def apply(
        self,
        target: Object,
        *,
        dry_run: bool = False,
        field_manager: str = FIELD_MANAGER,
    ) -> Object:
        """Server-side apply, which takes over fields of others. The object afterwards."""
        params = {"fieldManager": field_manager, "force": "true", **_STRICT}
        params |= _DRY if dry_run else {}
        return self._request(
            "PATCH", self.path(target), target, about=target, params=params, form=_APPLY
        )

    def create(self, target: Object, *, dry_run: bool = False) -> Object:
        """Create the object and return it as stored.

        With `dry_run` nothing is stored. Refused where it exists already, and where it has an
        unknown field.
        """
        params = {**_STRICT, **(_DRY if dry_run else {})}
        return self._request("POST", self._collection(target), target, about=target, params=params)

    def apply_status(self, target: Object, *, field_manager: str = FIELD_MANAGER) -> Object:
        """Server-side apply of the status subresource."""
        params = {"fieldManager": field_manager, "force": "true"}
        path = f"{self.path(target)}/status"
        return self._request("PATCH", path, target, about=target, params=params, form=_APPLY)

    def get(self, target: Object) -> Object | None:
        """The live object of the same kind and name, or None."""
        try:
            return self._request("GET", self.path(target), about=target)
        except AbsentError:
            return None

    def list(
        self, api_version: str, kind: str, namespace: str | None = None, label: str | None = None
    ) -> list[Object]:
        """The live objects of a kind, in one namespace or in all."""
        probe: Object = {"apiVersion": api_version, "kind": kind, "metadata": {}}
        if namespace is not None:
            probe["metadata"]["namespace"] = namespace
        params = {"labelSelector": label} if label else {}
        path = self._collection(probe, everywhere=namespace is None)
        found = self._request("GET", path, params=params)
        return [{"apiVersion": api_version, "kind": kind, **item} for item in found["items"]]

    def revision(self) -> str:
        """What the last change of any object is called: lists have the revision of etcd's store."""
        found = self._request("GET", "/api/v1/namespaces", params={"limit": "1"})
        return found["metadata"]["resourceVersion"]

    def delete(self, target: Object, *, grace_s: int | None = None) -> bool:
        """Ask for the object's end; False if it is gone already."""
        options: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        try:
            self._request("DELETE", self.path(target), options, about=target)
        except AbsentError:
            return False
        return True

    def merge_patch(self, target: Object, patch: Object, *, subresource: str = "") -> Object:
        """JSON merge patch of the object, or of one of its subresources."""
        path = self.path(target) + (f"/{subresource}" if subresource else "")
        return self._request("PATCH", path, patch, about=target, form=_MERGE)

    def finalize_namespace(self, namespace: Object) -> None:
        """Let a deleted namespace end, as the namespace controller does once it is empty."""
        # Without a version: whoever releases it at the same time is no conflict.
        metadata = {"name": namespace["metadata"]["name"]}
        freed = {**namespace, "metadata": metadata, "spec": {"finalizers": []}}
        with contextlib.suppress(AbsentError):
            self._request("PUT", self.path(namespace) + "/finalize", freed)

    def wait_for(
        self,
        target: Object,
        what: str,
        is_met: Callable[[Object], bool],
        *,
        timeout_s: float,
        cancelled: threading.Event | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> Object:
        """Return the live object once `is_met` holds; a timeout says what its status was.

        `log` is called with one line whenever the awaited status changes, once the wait is long.
        """
        looks = self._looks(target, what, summary, timeout_s, cancelled, log)
        return next(live for live in looks if live is not None and is_met(live))

    def wait_gone(
        self, target: Object, *, timeout_s: float, cancelled: threading.Event | None = None
    ) -> None:
        """Return once the object is gone; a timeout names its finalizers."""

        def holders(live: Object | None) -> str:
            return f"finalizers: {', '.join(finalizers(live or {})) or 'none'}"

        uid = target.get("metadata", {}).get("uid")
        looks = self._looks(target, "its end", holders, timeout_s, cancelled, lambda _line: None)
        next(live for live in looks if live is None or uid not in (None, live["metadata"]["uid"]))

    def _looks(
        self,
        target: Object,
        what: str,
        said: Callable[[Object | None], str],
        timeout_s: float,
        cancelled: threading.Event | None,
        log: Callable[[str], None],
    ) -> Iterator[Object | None]:
        """The live object again and again; CancelledError or WaitTimeoutError end it."""
        event = cancelled or threading.Event()
        began = answered = time.monotonic()
        logged = ""
        while True:
            try:
                live = self.get(target)
            except KubeError as error:
                # What is waited for goes on meanwhile: hours of it end at no lost answer.
                if not error.passes or time.monotonic() - answered > _AWAY_S:
                    raise
                now = str(error)
            else:
                yield live
                answered, now = time.monotonic(), said(live)
            if event.is_set():
                raise CancelledError(f"{describe(target)}: interrupted while waiting for {what}")
            passed_s = time.monotonic() - began
            if passed_s >= timeout_s:
                raise WaitTimeoutError(
                    f"{describe(target)}: waited {timeout_s:g} s for {what}; {now}"
                )
            if passed_s > _QUIET_S and now != logged:
                logged = now
                limit = f"{passed_s:.0f} s of at most {timeout_s:g} s passed"
                log(f"{describe(target)}: {now}; {limit}")
            event.wait(_POLL_S)

    def objects_in(self, namespace: str) -> list[Object]:
        """Every object in a namespace that can be deleted.

        One of several versions comes in that which its group prefers, where it has the kind.
        """
        versions = ["v1"]
        for group in self._request("GET", "/apis")["groups"]:
            versions += [
                each["groupVersion"] for each in (group["preferredVersion"], *group["versions"])
            ]
        found: dict[tuple[str, str], str] = {}
        for version in dict.fromkeys(versions):
            for kind in self._request("GET", _group_path(version))["resources"]:
                deletable = {"list", "delete"} <= set(kind["verbs"])
                if kind["namespaced"] and deletable and "/" not in kind["name"]:
                    found.setdefault((version.rpartition("/")[0], kind["kind"]), version)
        return [
            item
            for (_, kind), version in found.items()
            for item in self.list(version, kind, namespace)
        ]

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
            resources = self._request("GET", _group_path(api_version))["resources"]
        except AbsentError:
            resources = []
        kinds = {f"{api_version}/{r['kind']}": r for r in resources if "/" not in r["name"]}
        with self._lock:
            self._kinds |= kinds
        if f"{api_version}/{kind}" not in kinds:
            raise AbsentError(
                f"{kind} ({api_version}): the API server does not know this kind; "
                "install its CustomResourceDefinition first",
                status=404,
            )
        return kinds[f"{api_version}/{kind}"]

    def _request(
        self,
        method: str,
        path: str,
        content: Object | None = None,
        *,
        about: Object | None = None,
        params: dict[str, str] | None = None,
        form: str = "application/json",
    ) -> Any:
        """The answer's JSON; KubeError for a refusal, begun with what the request is `about`."""
        headers = {"Content-Type": form, "Accept": "application/json"}
        if token := self._access.token():
            headers["Authorization"] = f"Bearer {token}"
        url = f"{path}?{urlencode(params)}" if params else path
        body = None if content is None else json.dumps(content).encode()
        try:
            response = self._http.request(method, url, body=body, headers=headers, retries=_RETRIES)
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{self._access.server}: no answer: {_reason(error)}") from error
        if response.status >= 400:
            message = f"{describe(about)}: {_message(response)}" if about else _message(response)
            refusal = AbsentError if response.status == 404 else KubeError
            raise refusal(message, status=response.status)
        return response.json()


def _group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def _message(response: urllib3.BaseHTTPResponse) -> str:
    """The API server's own words, on one line."""
    try:
        text = response.json()["message"]
    except (ValueError, KeyError):
        text = response.data.decode(errors="replace") or f"HTTP {response.status}"
    return " ".join(text.split())


def _reason(error: urllib3.exceptions.HTTPError) -> str:
    """The cause that helps, without the pool and the URL around it."""
    cause = getattr(error, "reason", None) or error
    return str(cause).rpartition("): ")[2] or type(cause).__name__


_EXEC_TIMEOUT_S = 60
_RENEW_BEFORE_S = 60


class KubeconfigError(KubeError):
    """A kubeconfig that leads nowhere."""


@dataclass(kw_only=True)
class Access:
    """Server, trust, identity and default namespace."""

    server: str
    ca_pem: str | None = None
    static_token: str | None = None
    exec_command: Mapping[str, Any] | None = None
    environ: Mapping[str, str] | None = None
    """Of that command; None: this process's own."""
    namespace: str = "default"
    _token: str | None = field(default=None, repr=False)
    _expires: float = field(default=float("inf"), repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def pool(self, **options: Any) -> urllib3.HTTPConnectionPool:
        """Connections to this one server, by its cluster's own authority and never by a proxy."""
        if self.server.startswith("https:"):
            options["ssl_context"] = ssl.create_default_context(cadata=self.ca_pem)
        return urllib3.connection_from_url(self.server, **options)

    def token(self) -> str | None:
        """A bearer token that is still valid; runs the exec credential when needed."""
        if self.exec_command is None:
            return self.static_token
        with self._lock:
            if self._token is None or time.time() > self._expires - _RENEW_BEFORE_S:
                self._token, self._expires = _run_exec(self.exec_command, self.environ)
            return self._token


def read_kubeconfig(text: str) -> Access:
    """The access of a kubeconfig as the program writes it (infra/render/nodes.py), the only one
    that this client gets: JSON of one cluster and one user, who has a token or what prints one.
    """
    try:
        config = json.loads(text)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        server = cluster["server"].rstrip("/")
    except (ValueError, LookupError, TypeError) as error:
        raise KubeconfigError(
            f"kubeconfig: is not as the program writes it: {type(error).__name__}: {error}; run "
            "`pulumi up`, which writes it"
        ) from error
    authority = cluster.get("certificate-authority-data")
    return Access(
        server=server,
        ca_pem=base64.b64decode(authority).decode() if authority else None,
        static_token=user.get("token"),
        exec_command=user.get("exec"),
    )


def _run_exec(command: Mapping[str, Any], environ: Mapping[str, str] | None) -> tuple[str, float]:
    """Token and expiry (seconds since the epoch) of `soperator kube-token`."""
    argv = [command["command"], *command["args"]]
    try:
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_EXEC_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KubeconfigError(f"kubeconfig: exec credential `{argv[0]}`: {error}") from error
    whole = f"kubeconfig: exec credential `{' '.join(argv)}`"
    if done.returncode != 0:
        tail = " ".join(done.stderr.split())[-300:]
        raise KubeconfigError(f"{whole} ended with {done.returncode}: {tail}")
    try:
        status = json.loads(done.stdout)["status"]
        token = status["token"]
    except (ValueError, KeyError, TypeError) as error:
        raise KubeconfigError(f"{whole} printed no ExecCredential with a token") from error
    expiry = status.get("expirationTimestamp")
    expires = datetime.fromisoformat(expiry).timestamp() if expiry else float("inf")
    return token, expires


_ARRIVAL: Final = "soperator-stack"
# Source: helm/helm pkg/release/status.go, IsPending, v3.20.2.
_UNFINISHED: Final = ("pending-install", "pending-upgrade", "pending-rollback")


# Helm installs no release whose name has a record. A state file that was lost, and a run that was
# killed between Helm's record and the engine's, leave such records. Without its record a release is
# installed over its own objects, which Helm takes over by their annotations (helm/helm
# pkg/action/validate.go, existingResourceConflict, read 2026-11-21). Nor does Helm change a release
# whose last record says that a change is under way, as a killed run leaves one.


def drop_unknown(client: KubeClient, stack: str, *, release: str, namespace: str) -> list[str]:
    """Names of the records of a release that it deleted: those of this stack's earlier runs.

    A release that was there before the stack first came to this cluster is somebody else's: its
    records stay, and Helm refuses the name.
    """
    return _drop(client, stack, namespace, f"owner=helm,name={release}")


def drop_unfinished(client: KubeClient, stack: str, *, release: str, namespace: str) -> list[str]:
    """Names of the records that it deleted: changes of a release that a run was killed in.

    The engine lets one run at a time change a stack, so whoever began them is gone. The record of
    the last whole revision stays, and Helm goes on from it.
    """
    label = f"owner=helm,name={release},status in ({', '.join(_UNFINISHED)})"
    return _drop(client, stack, namespace, label)


def _drop(client: KubeClient, stack: str, namespace: str, label: str) -> list[str]:
    arrived = arrival(stack)
    came = (client.get(arrived) or client.apply(arrived))["metadata"]["creationTimestamp"]
    found = client.list("v1", "Secret", namespace, label=label)
    # RFC 3339 in UTC, so that text compares as time does.
    ours = [each for each in found if each["metadata"]["creationTimestamp"] >= came]
    for each in ours:
        client.delete(each)
    return sorted(each["metadata"]["name"] for each in ours)


def arrival(stack: str) -> Object:
    """What says since when a stack is in a cluster; it stays as long as the cluster."""
    return kube_object("v1", "ConfigMap", f"{_ARRIVAL}-{stack}", "kube-system")
