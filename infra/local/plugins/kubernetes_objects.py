"""Objects of the stand-in of pulumi-kubernetes: apply, drift, delete, and what they wait for.

`pulumi.com/waitFor` takes `jsonpath={.status.phase}=Available`, `condition=Ready`, and a JSON list.
On a whole cluster kube-controller-manager empties a deleted namespace and takes its finalizer away;
the local stack runs the API server alone, so whoever deletes a namespace there does it.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import string
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from infra.clients.errors import AbsentError, CancelledError, KubeError, WaitTimeoutError
from infra.clients.kube import KubeClient
from infra.clients.kube_rules import describe, quantity
from infra.providers.engine.provider import (
    UNKNOWN,
    Diff,
    PartialError,
    ProviderError,
    Secret,
    compare,
    contains_unknown,
)
from infra.providers.soperator.teardown import CONTROLLER_LEASE
from infra.render.names import kube_object

if TYPE_CHECKING:
    from infra.local.plugins.kubernetes import Kubernetes


def project(live: Any, declared: Any) -> Any:
    """The live value, reduced to the fields that are declared."""
    if isinstance(declared, dict) and isinstance(live, dict):
        return {key: project(live[key], item) for key, item in declared.items() if key in live}
    if isinstance(declared, list) and isinstance(live, list):
        shared = [project(item, was) for item, was in zip(live, declared, strict=False)]
        return shared + live[len(declared) :]
    return declared if _same_scalar(live, declared) else live


def _same_scalar(live: Any, declared: Any) -> bool:
    """Whether two values mean the same to the API: 1000m and 1, or null and nothing."""
    if live == declared:
        return True
    if not isinstance(live, str) or not isinstance(declared, str | int):
        return False
    try:
        return quantity(live) == quantity(str(declared))
    except ValueError:  # no amounts, but words
        return False


_EMPTY_TIMEOUT_S: Final = 60.0


def finish_namespace(client: KubeClient, name: str, cancelled: threading.Event) -> None:
    """Empty a deleted namespace and release it, unless a controller-manager does."""
    if client.get(CONTROLLER_LEASE) is not None:
        return
    held = client.objects_in(name)
    for item in held:
        client.delete(item)
    for item in held:
        client.wait_gone(item, timeout_s=_EMPTY_TIMEOUT_S, cancelled=cancelled)
    namespace = client.get(kube_object("v1", "Namespace", name))
    if namespace is not None:
        client.finalize_namespace(namespace)


WAIT_FOR: Final = "pulumi.com/waitFor"
SKIP_AWAIT: Final = "pulumi.com/skipAwait"
TIMEOUT_SECONDS: Final = "pulumi.com/timeoutSeconds"
DEFAULT_TIMEOUT_S: Final = 600.0
_JSONPATH = re.compile(r"""jsonpath=\{(?P<path>\.[^}]+)\}(?:=(?P<value>.*))?""")
_STEP = re.compile(
    r"""\.(?P<key>[A-Za-z0-9_-]+)|\[(?P<index>\d+)\]|\[\?\(@\.(?P<name>\w+)==["'](?P<is>[^"']*)["']\)\]"""
)


@dataclass(frozen=True, slots=True)
class Wait:
    """One condition on a live object and its words for a message."""

    what: str
    is_met: Callable[[dict[str, Any]], bool]


def waits_of(inputs: dict[str, Any]) -> list[Wait]:
    """The waits that a resource's annotations ask for."""
    annotations = _annotations(inputs)
    text = annotations.get(WAIT_FOR)
    if not text or annotations.get(SKIP_AWAIT) == "true":
        return []
    expressions = json.loads(text) if text.lstrip().startswith("[") else [text]
    return [_parse(expression) for expression in expressions]


def timeout_of(inputs: dict[str, Any]) -> float:
    """How long to wait for a resource, in seconds."""
    return float(_annotations(inputs).get(TIMEOUT_SECONDS, DEFAULT_TIMEOUT_S))


def _annotations(inputs: dict[str, Any]) -> dict[str, Any]:
    return (inputs.get("metadata") or {}).get("annotations") or {}


def _parse(expression: str) -> Wait:
    if expression.startswith("condition="):
        name, _, value = expression.removeprefix("condition=").partition("=")
        wanted = value or "True"
        path = f'.status.conditions[?(@.type=="{name}")].status'
        return Wait(expression, lambda live: _lookup(live, path) == wanted)
    match = _JSONPATH.fullmatch(expression)
    if match is None:
        raise ProviderError(
            f"metadata.annotations.{WAIT_FOR}: {expression!r} is not understood; "
            "write jsonpath={.status.phase}=VALUE or condition=NAME"
        )
    path, value = match["path"], match["value"]
    if value is None:
        return Wait(expression, lambda live: _lookup(live, path) is not None)
    return Wait(expression, lambda live: _text(_lookup(live, path)) == value)


def _lookup(live: Any, path: str) -> Any:
    position, found = 0, live
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise ProviderError(f"jsonpath {{{path}}}: is not understood from {path[position:]!r}")
        position = step.end()
        found = _descend(found, step)
        if found is None:
            return None
    return found


def _descend(found: Any, step: re.Match[str]) -> Any:
    if step["key"] is not None:
        return found.get(step["key"]) if isinstance(found, dict) else None
    if not isinstance(found, list):
        return None
    if step["index"] is not None:
        index = int(step["index"])
        return found[index] if index < len(found) else None
    return next((item for item in found if item.get(step["name"]) == step["is"]), None)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


Values = dict[str, Any]

_IDENTITY: Final = ("apiVersion", "kind", "metadata.name", "metadata.namespace")
# Fields that the API refuses to change, or whose change must reach the pods that read them.
# Source: pulumi-kubernetes provider/pkg/provider/diff.go, table forceNew, v4.32.0, read 2026-11-22.
_REPLACED: Final[dict[str, tuple[str, ...]]] = {
    "ConfigMap": ("data", "binaryData"),
    "Secret": ("data", "stringData", "type"),
    "PersistentVolume": ("spec.local", "spec.csi", "spec.hostPath", "spec.nfs"),
    "PersistentVolumeClaim": (
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeName",
    ),
    "StorageClass": ("parameters", "provisioner"),
    "Job": ("spec.completions", "spec.parallelism", "spec.selector", "spec.template"),
    "DaemonSet": ("spec.selector",),
    "Deployment": ("spec.selector",),
    "Service": ("spec.clusterIP",),
    "RoleBinding": ("roleRef",),
    "ClusterRoleBinding": ("roleRef",),
}
_MUTABLE: Final = {"ConfigMap": "enableConfigMapMutable", "Secret": "enableSecretMutable"}
_SECRET_FIELDS: Final = ("data", "stringData")
_SERVER_METADATA: Final = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation",
    "managedFields", "resourceVersion", "selfLink", "uid"
)  # fmt: skip
_SUFFIX_LETTERS: Final = string.ascii_lowercase + string.digits
_SUFFIX_LENGTH: Final = 8


class Objects:
    """The engine's verbs on single objects."""

    def __init__(self, provider: Kubernetes) -> None:
        self._provider = provider

    def check(self, old: Values, new: Values) -> tuple[Values, Iterable[tuple[str, str]]]:
        failures = [
            (key, "is required")
            for key in ("apiVersion", "kind")
            if not isinstance(new.get(key), str) or new[key] == ""
        ]
        return _conceal_secret(_encoded(new)), failures

    def diff(self, id: str, old_inputs: Values, new: Values) -> Diff:
        detailed = compare(old_inputs, new)
        old_name = old_inputs.get("metadata", {}).get("name")
        new_name = new.get("metadata", {}).get("name")
        if old_name is None and new_name == id.rpartition("/")[2]:
            detailed.pop("metadata.name", None)  # the automatic name, now written down
        if new_name is None and old_name is not None:
            detailed.pop("metadata.name", None)  # an automatic name keeps what is there
        fixed = (*_IDENTITY, *self._replaced(new))
        replaces = tuple(p for p in detailed if any(_below(p, at) for at in fixed))
        return Diff(
            detailed=detailed,
            replaces=replaces,
            stables=("apiVersion", "kind"),
            # Two objects cannot have one name at the same time.
            delete_before_replace=bool(replaces)
            and new_name is not None
            and (old_name, _namespace(old_inputs)) == (new_name, _namespace(new)),
        )

    def create(self, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        target = self._named(urn, inputs)
        if preview:
            return "", self._preview(urn, inputs, target)
        client = self._provider.client()
        placed = self._placed(client, target)
        if not self._provider.option("upsertExistingObjects") and client.get(placed) is not None:
            raise KubeError(
                f"{describe(placed)}: already exists; set upsertExistingObjects on the provider to "
                "take it over",
                status=409,
            )
        live = client.apply(placed, force=self._forces(inputs))
        return _id(live), self._await(client, inputs, live)

    def update(self, urn: str, id: str, old_state: Values, new: Values, preview: bool) -> Values:
        target = _with_id(new, id)
        if preview:
            return self._preview(urn, new, target)
        client = self._provider.client()
        live = client.apply(self._placed(client, target), force=self._forces(new))
        return self._await(client, new, live)

    def _forces(self, inputs: Values) -> bool:
        """Whether fields that somebody else manages are taken over."""
        declared = _annotations(inputs).get("pulumi.com/patchForce") == "true"
        return declared or self._provider.option("enablePatchForce")

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        client = self._provider.client()
        target = _with_id(inputs or _of_type(type_), id)
        live = client.get(self._placed(client, target))
        if live is None:
            return None
        declared = project(live, inputs)
        if not inputs:  # what a program would have declared to get this object
            metadata = {k: v for k, v in live["metadata"].items() if k not in _SERVER_METADATA}
            declared = {**{k: v for k, v in live.items() if k != "status"}, "metadata": metadata}
        return _id(live), _state(live, declared), _conceal_secret(declared)

    def delete(self, type_: str, id: str, state: Values) -> None:
        client = self._provider.client()
        known = {key: state[key] for key in ("apiVersion", "kind") if key in state}
        target = self._placed(client, _with_id(known or _of_type(type_), id))
        remove(client, target, timeout_of(state), self._provider.cancelled)

    def _preview(self, urn: str, inputs: Values, target: Values) -> Values:
        if not contains_unknown(target):
            client = self._provider.preview_client(urn)
            if client is not None:
                with suppress(AbsentError):  # a kind that comes with the same update
                    target = self._placed(client, target)
                dry_run(client, target)
        state = {**inputs, "metadata": dict(inputs.get("metadata") or {})}
        state["metadata"].setdefault("name", UNKNOWN)
        return _conceal_secret(state)

    def _await(self, client: KubeClient, inputs: Values, live: Values) -> Values:
        state = _state(live, project(live, inputs))
        try:
            for wait in waits_of(inputs):
                client.wait_for(
                    live,
                    wait.what,
                    wait.is_met,
                    timeout_s=timeout_of(inputs),
                    cancelled=self._provider.cancelled,
                )
        except (WaitTimeoutError, CancelledError) as error:
            raise PartialError(str(error), id=_id(live), state=state) from error
        return state

    def _named(self, urn: str, inputs: Values) -> Values:
        metadata = dict(inputs.get("metadata") or {})
        if not metadata.get("name") and metadata.get("name") is not UNKNOWN:
            metadata["name"] = auto_name(urn)
            notes = {**(metadata.get("annotations") or {}), "pulumi.com/autonamed": "true"}
            metadata["annotations"] = notes
        return {**inputs, "metadata": metadata}

    def _placed(self, client: KubeClient, target: Values) -> Values:
        """The object with its namespace, where its kind has one."""
        metadata = dict(target["metadata"])
        if client.is_namespaced(target):
            metadata["namespace"] = metadata.get("namespace") or self._provider.namespace
        return {**target, "metadata": metadata}

    def _replaced(self, new: Values) -> tuple[str, ...]:
        kind = new.get("kind", "")
        option = _MUTABLE.get(kind)
        if option and self._provider.option(option) and not new.get("immutable"):
            return tuple(name for name in _REPLACED[kind] if name == "type")
        return _REPLACED.get(kind, ())


def auto_name(urn: str) -> str:
    """A name for what was declared without one."""
    suffix = "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(_SUFFIX_LENGTH))
    return f"{urn.rpartition('::')[2]}-{suffix}"


def dry_run(client: KubeClient, target: Values) -> None:
    """Have the API server check an object; what the same update will make first is no error."""
    try:
        client.apply(target, dry_run=True)
    except AbsentError as error:
        if "namespaces" not in str(error):
            return  # the kind comes with a release of the same update
        # The namespace comes with the same update: check the fields in one that exists.
        metadata = {**target["metadata"], "namespace": "default"}
        client.apply({**target, "metadata": metadata}, dry_run=True)


def remove(
    client: KubeClient, target: Values, timeout_s: float, cancelled: threading.Event
) -> None:
    """Delete an object and return once it is gone."""
    live = client.get(target)
    if live is None:
        return
    client.delete(live)
    if live["kind"] == "Namespace" and live["apiVersion"] == "v1":
        finish_namespace(client, live["metadata"]["name"], cancelled)
    client.wait_gone(live, timeout_s=timeout_s, cancelled=cancelled)


def _state(live: Values, declared: Values) -> Values:
    """The outputs: what is declared, as it is in the cluster, with the identity the server gave."""
    metadata = {**declared.get("metadata", {})}
    for key in ("name", "namespace", "uid"):
        if key in live["metadata"]:
            metadata[key] = live["metadata"][key]
    return _conceal_secret({**declared, "metadata": metadata})


def _conceal_secret(values: Values) -> Values:
    """The values with a Secret's content wrapped."""
    if values.get("kind") != "Secret":
        return values
    return {
        key: Secret(item) if key in _SECRET_FIELDS and not isinstance(item, Secret) else item
        for key, item in values.items()
    }


def _encoded(values: Values) -> Values:
    """A Secret's inputs as the official plugin keeps them: texts in `data`, in base64."""
    texts = values.get("stringData")
    if values.get("kind") != "Secret" or not isinstance(texts, dict) or contains_unknown(texts):
        return values
    encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
    rest = {key: item for key, item in values.items() if key != "stringData"}
    return {**rest, "data": {**(values.get("data") or {}), **encoded}}


def _id(live: Values) -> str:
    namespace = live["metadata"].get("namespace")
    name = live["metadata"]["name"]
    return f"{namespace}/{name}" if namespace else name


def _namespace(inputs: Values) -> str:
    return (inputs.get("metadata") or {}).get("namespace") or "default"


def _with_id(values: Values, id: str) -> Values:
    namespace, _, name = id.rpartition("/")
    metadata = {**(values.get("metadata") or {}), "name": name}
    if namespace:
        metadata["namespace"] = namespace
    return {**values, "metadata": metadata}


def _of_type(type_: str) -> Values:
    """apiVersion and kind of a type token; the core group is written `core/v1` there."""
    _, group_version, kind = type_.split(":")
    return {"apiVersion": group_version.removeprefix("core/"), "kind": kind}


def _below(path: str, at: str) -> bool:
    """Whether `path` is `at`, inside it, or above it (a whole mapping came or went)."""
    return path == at or path.startswith((f"{at}.", f"{at}[")) or at.startswith(f"{path}.")
