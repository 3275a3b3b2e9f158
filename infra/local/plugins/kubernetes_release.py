"""Helm releases: known Soperator charts are rendered and applied, the others recorded.

Owns the record of a release (ConfigMap `release-<name>`: revision, status, inventory) and pruning
of what is no longer rendered. Beside it lies an empty record under Helm's own name and labels,
which refuses a release what it refuses in Helm: a name in use, a revision that was never finished,
an object of somebody else. Does not pull charts, runs no hooks and waits for nothing: Helm's wait
knows no custom resource, and what else these charts make is there at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from infra.clients.kube import KubeClient
from infra.local.kube.api_server import load_crds
from infra.local.kube.values import (
    RECORDED_LABEL,
    ChartError,
    Object,
    Release,
    merge,
    objects,
)
from infra.local.plugins.kubernetes_objects import auto_name, dry_run, remove
from infra.providers.engine.provider import (
    UNKNOWN,
    Asset,
    Diff,
    ProviderError,
    compare,
    contains_unknown,
)
from infra.render.names import kube_object

if TYPE_CHECKING:
    from infra.local.plugins.kubernetes import Kubernetes


Values = dict[str, Any]

RELEASE_LABEL: Final = "local.soperator/release"
DEFAULT_TIMEOUT_S: Final = 300.0
"""As in Helm: five minutes."""
_HELM_RECORD: Final = "sh.helm.release.v1"
_HELM_TYPE: Final = "helm.sh/release.v1"
_MARK_WORDS: Final = {"labels": "label", "annotations": "annotation"}


class Releases:
    """The engine's verbs on helm.v3.Release."""

    def __init__(self, provider: Kubernetes) -> None:
        self._provider = provider

    def check(self, old: Values, new: Values) -> tuple[Values, Iterable[tuple[str, str]]]:
        return new, [("chart", "is required")] if not new.get("chart", UNKNOWN) else []

    def diff(self, id: str, old_inputs: Values, new: Values) -> Diff:
        detailed = compare(old_inputs, new)
        replaces = tuple(path for path in detailed if path in ("name", "namespace"))
        return Diff(detailed=detailed, replaces=replaces)

    def create(self, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        name = inputs.get("name") or auto_name(urn)
        if preview:
            return "", self._preview(urn, name, inputs)
        release = self._release(name, inputs)
        if _helm_records(self._provider.client(), release.namespace, release.name):
            raise ProviderError("cannot re-use a name that is still in use")
        return f"{release.namespace}/{release.name}", self._deploy(urn, release, inputs, new=True)

    def update(self, urn: str, id: str, old_state: Values, new: Values, preview: bool) -> Values:
        name = id.rpartition("/")[2]
        if preview:
            return self._preview(urn, name, new)
        release = self._release(name, new)
        records = _helm_records(self._provider.client(), release.namespace, release.name)
        if any(each["metadata"]["labels"]["status"].startswith("pending") for each in records):
            raise ProviderError("another operation (install/upgrade/rollback) is in progress")
        return self._deploy(urn, release, new)

    def read(
        self, type_: str, id: str, state: Values, inputs: Values
    ) -> tuple[str, Values, Values] | None:
        client = self._provider.client()
        record = client.get(_record_key(id))
        if record is None:
            return None
        missing = [key for key in _inventory(record) if client.get(_target(key)) is None]
        if missing:
            # An object went away: the release is no longer what was declared.
            inputs = {**inputs, "values": {}}
        return id, {**state, **inputs, "status": _status(record)}, inputs

    def delete(self, type_: str, id: str, state: Values) -> None:
        client = self._provider.client()
        record = client.get(_record_key(id))
        if record is None:
            return
        timeout_s = float(state.get("timeout") or DEFAULT_TIMEOUT_S)
        for key in reversed(_inventory(record)):
            remove(client, _target(key), timeout_s, self._provider.cancelled)
        namespace, _, name = id.rpartition("/")
        for each in _helm_records(client, namespace, name):
            client.delete(each)
        remove(client, record, timeout_s, self._provider.cancelled)

    def _preview(self, urn: str, name: Any, inputs: Values) -> Values:
        if not contains_unknown({**inputs, "name": name}):
            release = self._release(name, inputs)
            rendered = self._render(release, inputs)
            self._say(urn, release, rendered)
            client = self._provider.preview_client(urn)
            if client is not None:
                for target in rendered.objects:
                    dry_run(client, target)
        return {**inputs, "name": inputs.get("name") or UNKNOWN, "status": UNKNOWN}

    def _deploy(self, urn: str, release: Release, inputs: Values, *, new: bool = False) -> Values:
        rendered = self._render(release, inputs)
        self._say(urn, release, rendered)
        client = self._provider.client()
        if inputs.get("createNamespace"):
            client.apply(kube_object("v1", "Namespace", release.namespace))
        id_ = f"{release.namespace}/{release.name}"
        before = client.get(_record_key(id_))
        revision = int(before["data"]["revision"]) + 1 if before and not new else 1
        known = _inventory(before) if before else []
        keep = [] if release.chart == CRDS_CHART else [_key(t) for t in rendered.objects]
        for target in rendered.objects:
            if keep and _key(target) not in known:
                _refuse_of_others(client, target, release)
        # Written first with all objects of both revisions: an interrupted update loses none.
        both = keep + [key for key in known if key not in keep]
        pending = "pending-install" if new else "pending-upgrade"
        _record(client, release, rendered, revision, pending, both)
        for target in rendered.objects:
            client.apply(_owned(target, release) if keep else target)
        for key in reversed([key for key in known if key not in keep]):
            remove(client, _target(key), DEFAULT_TIMEOUT_S, self._provider.cancelled)
        state = {**inputs, "name": release.name, "namespace": release.namespace}
        record = _record(client, release, rendered, revision, "deployed", keep)
        return {**state, "status": _status(record)}

    def _render(self, release: Release, inputs: Values) -> Rendered:
        try:
            return render(release, _values(inputs))
        except ChartError as error:
            raise ProviderError(f"release {release.name}: {error}") from error

    def _release(self, name: str, inputs: Values) -> Release:
        return Release(
            name=name,
            namespace=inputs.get("namespace") or self._provider.namespace,
            chart=inputs["chart"].rpartition("/")[2],
            version=str(inputs.get("version") or ""),
        )

    def _say(self, urn: str, release: Release, rendered: Rendered) -> None:
        name, chart, say = release.name, release.chart, self._provider.say_once
        if rendered.recorded_only:
            say(urn, f"release {name}: chart {chart} is recorded only, not run, on this stack")
            return
        say(urn, f"release {name}: chart {chart} rendered to {len(rendered.objects)} objects")
        if rendered.unused:
            unused = ", ".join(rendered.unused)
            say(urn, f"release {name}: values without effect on this stack: {unused}")


def _values(inputs: Values) -> Values:
    """The values of a release: its files in order, then `values` over them."""
    merged: Values = {}
    for asset in inputs.get("valueYamlFiles") or []:
        if not isinstance(asset, Asset) or (asset.path is None and asset.text is None):
            raise ProviderError("valueYamlFiles: give files as FileAsset or StringAsset")
        text = asset.text if asset.path is None else Path(asset.path).read_text()
        merged = _over(merged, yaml.safe_load(text or "") or {})
    return _over(merged, inputs.get("values") or {})


def _over(below: Values, above: Values) -> Values:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _over(below[key], value) if both else value
    return merged


def _record(
    client: KubeClient,
    release: Release,
    rendered: Rendered,
    revision: int,
    status: str,
    inventory: list[str],
) -> Object:
    """The release's ConfigMap as it is after this write."""
    data = {**asdict(release), "revision": str(revision), "status": status}
    record = _record_key(f"{release.namespace}/{release.name}")
    record["metadata"]["labels"] = {
        RELEASE_LABEL: release.name,
        RECORDED_LABEL: "true" if rendered.recorded_only else "false",
    }
    written = client.apply({**record, "data": {**data, "inventory": json.dumps(inventory)}})
    # The latest revision under Helm's own name; of earlier ones nothing is kept.
    labels = {"owner": "helm", "name": release.name, "status": status, "version": str(revision)}
    name = f"{_HELM_RECORD}.{release.name}.v{revision}"
    made = kube_object("v1", "Secret", name, release.namespace, metadata={"labels": labels})
    client.apply({**made, "type": _HELM_TYPE})
    for each in _helm_records(client, release.namespace, release.name):
        if each["metadata"]["name"] != name:
            client.delete(each)
    return written


def _helm_records(client: KubeClient, namespace: str, name: str) -> list[Object]:
    return client.list("v1", "Secret", namespace, label=f"owner=helm,name={name}")


def _owned(target: Object, release: Release) -> Object:
    """The object with the marks by which Helm knows its own."""
    metadata = dict(target["metadata"])
    for part, marks in _marks(release).items():
        metadata[part] = {**(metadata.get(part) or {}), **marks}
    return {**target, "metadata": metadata}


def _refuse_of_others(client: KubeClient, target: Object, release: Release) -> None:
    """Helm's refusal of what is there and is not marked as this release's."""
    live = client.get(target)
    if live is None:
        return
    missing = [
        f"{_MARK_WORDS[part]} validation error: missing key {json.dumps(key)}: must be set to "
        f"{json.dumps(value)}"
        for part, marks in _marks(release).items()
        for key, value in marks.items()
        if (live["metadata"].get(part) or {}).get(key) != value
    ]
    if missing:
        namespace = live["metadata"].get("namespace", "")
        raise ProviderError(
            f'Unable to continue with install: {live["kind"]} "{live["metadata"]["name"]}" in '
            f'namespace "{namespace}" exists and cannot be imported into the current release: '
            f"invalid ownership metadata; {'; '.join(missing)}"
        )


def _marks(release: Release) -> dict[str, dict[str, str]]:
    # Source: helm/helm pkg/action/validate.go, v3.20.2.
    return {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {
            "meta.helm.sh/release-name": release.name,
            "meta.helm.sh/release-namespace": release.namespace,
        },
    }


def _record_key(id: str) -> Object:
    namespace, _, name = id.rpartition("/")
    return kube_object("v1", "ConfigMap", f"release-{name}", namespace)


def _status(record: Object) -> Values:
    """The release's status as the official plugin reports it."""
    data = record["data"]
    fields = {key: data[key] for key in ("status", "name", "namespace", "chart", "version")}
    return {**fields, "appVersion": data["version"], "revision": int(data["revision"])}


def _inventory(record: Object) -> list[str]:
    return json.loads(record["data"].get("inventory", "[]"))


def _key(target: Object) -> str:
    metadata = target["metadata"]
    return "/".join(
        (target["apiVersion"], target["kind"], metadata.get("namespace", ""), metadata["name"])
    )


def _target(key: str) -> Object:
    api_version, kind, namespace, name = key.rsplit("/", 3)
    return kube_object(api_version, kind, name, namespace or None)


CHART_VERSION: Final = "4.1.7"
"""The only version whose values these renderers know."""
CRDS_CHART: Final = "helm-soperator-crds"

_RENDERED: Final = ("helm-slurm-cluster-storage", "helm-slurm-cluster", "helm-nodesets")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What a release becomes on the local stack."""

    objects: list[Object]
    recorded_only: bool
    unused: tuple[str, ...] = ()
    """Paths of given values that make no object here."""


def render(release: Release, given: Mapping[str, Any]) -> Rendered:
    """The objects of a release; none for a chart that is only recorded."""
    if release.chart == CRDS_CHART:
        return Rendered(objects=load_crds(), recorded_only=False)
    if release.chart not in _RENDERED:
        return Rendered(objects=[], recorded_only=True)
    if release.version != CHART_VERSION:
        raise ChartError(
            f"{release.chart}: version {release.version!r} is not known to the local stack (has: "
            f"{CHART_VERSION}); set cluster.soperator_version in the stack file"
        )
    values, unused = merge(release.chart, given)
    return Rendered(objects=objects(release, values), recorded_only=False, unused=unused)
