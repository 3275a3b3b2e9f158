"""Objects and releases of the stand-in of pulumi-kubernetes: apply, drift, delete, records.

Objects are those of infra/components: Namespace, ConfigMap, Secret and custom resources, each with
its name, its content and labels; what else could be declared is refused by name.

Known Soperator charts are rendered and applied, the others recorded: a ConfigMap `release-<name>`
has revision, status and inventory of a release; what is no longer rendered is removed. Beside it
lies an empty record under Helm's own name and labels, which refuses a release what it refuses in
Helm: a name in use, a revision that was never finished, an object of somebody else. No chart is
pulled, no hook run and nothing waited for: Helm's wait knows no custom resource, and what else
these charts make is there at once.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from infra.clients.errors import AbsentError, UnreachableError
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
from infra.local.plugins import OFFICIAL, StandIn, refused
from infra.providers.engine.provider import (
    TEXT,
    UNKNOWN,
    Diff,
    Failure,
    Found,
    Provider,
    ProviderError,
    Rule,
    Rules,
    Secret,
    compare,
    contains_unknown,
)
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
    return live


_TIMEOUT_S: Final = 600.0


Values = dict[str, Any]

_IDENTITY: Final = ("metadata.name", "metadata.namespace")
_NAMED: Final = {"name": TEXT}
_PLACED: Final = {
    **_NAMED,
    "namespace": TEXT,
    "labels": Rule(lambda value: isinstance(value, dict), "{} is no mapping", optional=True),
}
_SECRET_FIELDS: Final = ("data", "stringData")


_UNREAD: Final = "failed to read resource state due to unreachable cluster."


class Objects(Provider):
    """The engine's verbs on single objects of one kind."""

    def __init__(self, provider: Kubernetes, content: str = "spec") -> None:
        """`content` is the key of what they have beside their name and labels; empty: nothing."""
        super().__init__()
        self._provider = provider
        own: Rules = {"metadata": _PLACED, content: {}} if content else {"metadata": _NAMED}
        self._rules: Rules = {"apiVersion": TEXT, "kind": TEXT, **own}

    def check(self, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        return _conceal_secret(_encoded(new)), refused(new, self._rules)

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        changes = compare(old_inputs, new)
        replaces = tuple(path for path in _IDENTITY if path in changes)
        return Diff(detailed=changes, replaces=replaces)

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        live = self._provider.client().apply(inputs)
        return _id(live), _state(live, project(live, inputs))

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        live = self._provider.client().apply(new)
        return _state(live, project(live, new))

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        if not inputs:
            raise ProviderError(f"{id}: the stand-in imports nothing; {OFFICIAL}")
        live = None
        with self._provider.forgetting(_UNREAD):
            live = self._provider.client().get(inputs)
        if live is None:
            return None
        declared = project(live, inputs)
        return _id(live), _state(live, declared), _conceal_secret(declared)

    def delete(self, id: str, state: Values) -> None:
        with self._provider.forgetting("configured Kubernetes cluster is unreachable."):
            remove(self._provider.client(), state, _TIMEOUT_S, self._provider.cancelled)

    def preview(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        if not contains_unknown(new):
            client = self._provider.preview_client(urn)
            if client is not None:
                dry_run(client, new)
        return _conceal_secret(new)


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
    if not isinstance(texts, dict) or contains_unknown(texts):
        return values
    encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
    rest = {key: item for key, item in values.items() if key != "stringData"}
    return {**rest, "data": encoded}


def _id(live: Values) -> str:
    namespace = live["metadata"].get("namespace")
    name = live["metadata"]["name"]
    return f"{namespace}/{name}" if namespace else name


RELEASE_LABEL: Final = "local.soperator/release"
RELEASE_TIMEOUT_S: Final = 300.0
"""As in Helm: five minutes."""
_HELM_RECORD: Final = "sh.helm.release.v1"
_HELM_TYPE: Final = "helm.sh/release.v1"
_MARK_WORDS: Final = {"labels": "label", "annotations": "annotation"}


class Releases(StandIn):
    """The engine's verbs on helm.v3.Release."""

    identity = ("name", "namespace")
    rules: ClassVar = {
        **dict.fromkeys(("name", "namespace", "chart", "version"), TEXT),
        **dict.fromkeys(
            ("compat", "createNamespace", "repositoryOpts", "skipCrds", "timeout", "values"),
            Rule(lambda _: True, "", optional=True),
        ),
    }

    def __init__(self, provider: Kubernetes) -> None:
        super().__init__()
        self._provider = provider

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        release = _release(inputs)
        if _helm_records(self._provider.client(), release.namespace, release.name):
            raise ProviderError("cannot re-use a name that is still in use")
        return f"{release.namespace}/{release.name}", self._deploy(urn, release, inputs, new=True)

    def update(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        release = _release(new)
        records = _helm_records(self._provider.client(), release.namespace, release.name)
        if any(each["metadata"]["labels"]["status"].startswith("pending") for each in records):
            raise ProviderError("another operation (install/upgrade/rollback) is in progress")
        return self._deploy(urn, release, new)

    def read(self, id: str, state: Values, inputs: Values) -> Found | None:
        with self._provider.forgetting(_UNREAD):
            client = self._provider.client()
            record = client.get(_record_key(id))
            if record is None:
                return None
            missing = [key for key in _inventory(record) if client.get(_target(key)) is None]
            if missing:
                # An object went away: the release is no longer what was declared.
                inputs = {**inputs, "values": {}}
            return id, {**state, **inputs, "status": _status(record)}, inputs

    def delete(self, id: str, state: Values) -> None:
        try:
            self._remove(id, state)
        except UnreachableError as error:
            # Whatever the variable says: https://github.com/pulumi/pulumi-kubernetes/issues/2675
            refused = f"can't delete Helm Release with unreachable cluster. Reason: {error}"
            raise ProviderError(refused) from error

    def _remove(self, id: str, state: Values) -> None:
        client = self._provider.client()
        record = client.get(_record_key(id))
        if record is None:
            return
        timeout_s = float(state.get("timeout") or RELEASE_TIMEOUT_S)
        for key in reversed(_inventory(record)):
            remove(client, _target(key), timeout_s, self._provider.cancelled)
        namespace, _, name = id.rpartition("/")
        for each in _helm_records(client, namespace, name):
            client.delete(each)
        remove(client, record, timeout_s, self._provider.cancelled)

    def preview(self, urn: str, id: str, old_state: Values, new: Values) -> Values:
        if not contains_unknown(new):
            release = _release(new)
            rendered = self._render(release, new)
            self._say(urn, release, rendered)
            client = self._provider.preview_client(urn)
            if client is not None:
                for target in rendered.objects:
                    dry_run(client, target)
        return {**new, "status": UNKNOWN}

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
            remove(client, _target(key), RELEASE_TIMEOUT_S, self._provider.cancelled)
        record = _record(client, release, rendered, revision, "deployed", keep)
        return {**inputs, "status": _status(record)}

    def _render(self, release: Release, inputs: Values) -> Rendered:
        try:
            return render(release, inputs.get("values") or {})
        except ChartError as error:
            raise ProviderError(f"release {release.name}: {error}") from error

    def _say(self, urn: str, release: Release, rendered: Rendered) -> None:
        name, chart, say = release.name, release.chart, self._provider.say_once
        if rendered.recorded_only:
            say(urn, f"release {name}: chart {chart} is recorded only, not run, on this stack")
            return
        say(urn, f"release {name}: chart {chart} rendered to {len(rendered.objects)} objects")
        if rendered.unused:
            unused = ", ".join(rendered.unused)
            say(urn, f"release {name}: values without effect on this stack: {unused}")


def _release(inputs: Values) -> Release:
    chart = inputs["chart"].rpartition("/")[2]
    place = {key: inputs[key] for key in ("name", "namespace", "version")}
    return Release(**place, chart=chart)


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
