"""What pulumi-kubernetes does, case by case: each function returns one line for the table.

The kinds are those of infra/components: Namespace, Secret, ConfigMap, custom resources, Releases.
The API server is real and has no controllers: `collected` plays the one that ends a deletion.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from infra.clients.kube import KubeClient, drop_unfinished, drop_unknown
from infra.providers.engine.provider import UNKNOWN, Secret, reveal
from tests.conformance.command_cases import refusal
from tests.conformance.plugin import (
    Plugin,
    RefusedError,
    Resource,
    running_plugin,
    secret_keys,
    unknown_keys,
)
from tests.conformance.tiny_charts import VERSION

CONFIG_MAP: Final = "kubernetes:core/v1:ConfigMap"
SECRET: Final = "kubernetes:core/v1:Secret"
NAMESPACE: Final = "kubernetes:core/v1:Namespace"
RELEASE: Final = "kubernetes:helm.sh/v3:Release"
NODESET: Final = "kubernetes:slurm.nebius.ai/v1alpha1:NodeSet"
Values = dict[str, Any]
PROGRAM: Final = {
    "enableConfigMapMutable": "true",
    "enableSecretMutable": "true",
    "enablePatchForce": "true",
    "upsertExistingObjects": "true",
}
"""As infra/components/stack.py configures the plugin."""
SKIPPED: Final = {"annotations": {"pulumi.com/skipAwait": "true"}}


@dataclass
class World:
    """A real API server, a chart repository, and the plugin under test."""

    program: Path
    kubeconfig: str
    client: KubeClient
    charts: str
    plugin: Plugin = field(init=False)
    namespace: str = "default"

    def resource(self, type_: str, name: str) -> Resource:
        return Resource(self.plugin, type_, name)

    def config_map(self, name: str = "note", **data: str) -> Values:
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}

    def secret(self, **texts: str) -> Values:
        metadata = {"name": "key", "namespace": self.namespace}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "stringData": Secret(texts),
        }

    def release(self, chart: str = "tiny", **changes: Any) -> Values:
        return {
            "name": "tiny",
            "namespace": self.namespace,
            "chart": chart,
            "version": VERSION,
            "repositoryOpts": {"repo": self.charts},
            "values": {"text": "declared"},
            "timeout": 3,
            **changes,
        }

    def live(self, inputs: Values) -> Values:
        found = self.client.get(reveal(inputs))
        assert found is not None, inputs
        return found

    def tidy(self, text: str) -> str:
        """A line without what differs from run to run."""
        for value, name in ((self.charts, "CHARTS"), (self.namespace, "NS")):
            text = text.replace(value, name)
        text = re.sub(r"127\.0\.0\.1:\d+->|\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "", text)
        return " ".join(text.split())


@contextlib.contextmanager
def started(
    world: World, environ: dict[str, str] | None = None, **variables: str
) -> Iterator[World]:
    """The world with a plugin of its own, configured as the program does but for `variables`."""
    before = getattr(world, "plugin", None)
    settings = {"kubeconfig": world.kubeconfig, **PROGRAM, **variables}
    with running_plugin(world.program, settings, environ) as plugin:
        world.plugin = plugin
        try:
            yield world
        finally:
            if before is not None:
                world.plugin = before


@contextlib.contextmanager
def collected(world: World, *objects: Values) -> Iterator[None]:
    """Ends the deletion of these objects, as kube-controller-manager does on a whole cluster."""
    over = threading.Event()

    def collect() -> None:
        while not over.wait(0.1):
            for each in objects:
                live = world.client.get(reveal(each))
                held = (live or {"metadata": {}})["metadata"].get("finalizers") or []
                if live is not None and "foregroundDeletion" in held:
                    rest = [name for name in held if name != "foregroundDeletion"]
                    world.client.merge_patch(live, {"metadata": {"finalizers": rest}})

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def unreachable(world: World, **changes: str) -> dict[str, str]:
    """Variables of a provider whose cluster is gone."""
    away = json.loads(world.kubeconfig)
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    return {"kubeconfig": json.dumps(away), **changes}


def by_hand(world: World, inputs: Values, manager: str = "kubectl-edit") -> None:
    """Somebody else makes the object, or changes it."""
    world.client.apply(reveal(inputs), field_manager=manager)


def a_new_object_that_somebody_made(world: World) -> str:
    by_hand(world, {**world.config_map(a="theirs"), "data": {"a": "theirs", "b": "theirs"}})
    note = world.resource(CONFIG_MAP, "note")
    answer = refusal(lambda: note.create(world.config_map(a="ours")))
    return f"{answer}; then {world.live(world.config_map())['data']}"


def a_new_object_that_somebody_made_without_upsert(world: World) -> str:
    by_hand(world, world.config_map(a="theirs"))
    with started(world, upsertExistingObjects="false"):
        note = world.resource(CONFIG_MAP, "note")
        answer = refusal(lambda: note.create(world.config_map(a="ours")))
    says = "already exists" in answer
    return f"says that it exists: {says}; then {world.live(world.config_map())['data']}"


def a_new_object_that_somebody_made_without_force(world: World) -> str:
    by_hand(world, world.config_map(a="theirs"))
    with started(world, enablePatchForce="false"):
        note = world.resource(CONFIG_MAP, "note")
        return _conflict(refusal(lambda: note.create(world.config_map(a="ours"))))


def _conflict(answer: str) -> str:
    """The API server's own words in an answer, which each plugin introduces otherwise."""
    return answer[max(0, answer.find("Apply failed")) :]


def a_field_that_somebody_took(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="ours"))
    by_hand(world, world.config_map(a="theirs"), "controller")
    answer = refusal(lambda: note.update(world.config_map(a="ours again")))
    return f"{answer}; then {world.live(world.config_map())['data']}"


def a_field_that_somebody_took_without_force(world: World) -> str:
    with started(world, enablePatchForce="false"):
        note = world.resource(CONFIG_MAP, "note")
        note.create(world.config_map(a="ours"))
        by_hand(world, world.config_map(a="theirs"), "controller")
        return _conflict(refusal(lambda: note.update(world.config_map(a="ours again"))))


def a_field_that_is_no_longer_declared(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1", b="2"))
    by_hand(world, {**world.config_map(), "data": {"c": "theirs"}})
    note.update(world.config_map(a="1"))
    return str(world.live(world.config_map())["data"])


def what_a_change_does(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    labelled = world.config_map(a="1")
    labelled["metadata"]["labels"] = {"x": "y"}
    elsewhere = world.config_map(a="1")
    elsewhere["metadata"]["namespace"] = "kube-public"
    changes = {
        "nothing": world.config_map(a="1"),
        "data": world.config_map(a="2"),
        "label": labelled,
        "name": world.config_map("other", a="1"),
        "namespace": elsewhere,
    }
    return ", ".join(f"{name}: {note.step(inputs)}" for name, inputs in changes.items())


def what_a_change_of_a_fixed_one_does(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    changes = {
        "immutable": {**world.config_map(a="1"), "immutable": True},
        "immutable and data": {**world.config_map(a="2"), "immutable": True},
    }
    return ", ".join(f"{name}: {note.step(inputs)}" for name, inputs in changes.items())


def what_a_change_does_where_content_is_fixed(world: World) -> str:
    fixed = {"enableConfigMapMutable": "false", "enableSecretMutable": "false"}
    with started(world, **fixed):
        note, key = world.resource(CONFIG_MAP, "note"), world.resource(SECRET, "key")
        note.create(world.config_map(a="1"))
        key.create(world.secret(a="1"))
        return ", ".join(
            (
                f"config map: {note.step(world.config_map(a='2'))}",
                f"secret: {key.step(world.secret(a='2'))}",
            )
        )


def what_a_change_of_a_secret_does(world: World) -> str:
    key = world.resource(SECRET, "key")
    key.create(world.secret(a="1"))
    changes = {
        "nothing": world.secret(a="1"),
        "text": world.secret(a="2"),
        "another key": world.secret(a="1", b="2"),
    }
    return ", ".join(f"{name}: {key.step(inputs)}" for name, inputs in changes.items())


def what_a_change_of_a_secrets_type_does(world: World) -> str:
    key = world.resource(SECRET, "key")
    key.create(world.secret(a="1"))
    return f"type: {key.step({**world.secret(a='1'), 'type': 'example.com/kind'})}"


OBJECTS: Final[dict[str, tuple[str, Values, dict[str, Values]]]] = {
    "StorageClass": (
        "kubernetes:storage.k8s.io/v1:StorageClass",
        {
            "apiVersion": "storage.k8s.io/v1",
            "provisioner": "example.com/a",
            "parameters": {"a": "1"},
        },
        {
            "parameters": {"parameters": {"a": "2"}},
            "provisioner": {"provisioner": "example.com/b"},
            "reclaimPolicy": {"reclaimPolicy": "Retain"},
        },
    ),
    "PersistentVolume": (
        "kubernetes:core/v1:PersistentVolume",
        {
            "apiVersion": "v1",
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": {"storage": "1Gi"},
                "hostPath": {"path": "/a"},
            },
        },
        {
            "path": {"spec": {"hostPath": {"path": "/b"}}},
            "capacity": {"spec": {"capacity": {"storage": "2Gi"}}},
        },
    ),
    "PersistentVolumeClaim": (
        "kubernetes:core/v1:PersistentVolumeClaim",
        {
            "apiVersion": "v1",
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": "a",
            },
        },
        {
            "size": {"spec": {"resources": {"requests": {"storage": "2Gi"}}}},
            "class": {"spec": {"storageClassName": "b"}},
            "access modes": {"spec": {"accessModes": ["ReadWriteOnce"]}},
        },
    ),
    "Job": (
        "kubernetes:batch/v1:Job",
        {"apiVersion": "batch/v1", "spec": {"suspend": True, "template": {}}},
        {
            "image": {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}},
            "parallelism": {"spec": {"parallelism": 2}},
            "suspend": {"spec": {"suspend": False}},
        },
    ),
    "Service": (
        "kubernetes:core/v1:Service",
        {"apiVersion": "v1", "spec": {"ports": [{"port": 80}]}},
        {
            "cluster address": {"spec": {"clusterIP": "None"}},
            "type": {"spec": {"type": "NodePort"}},
        },
    ),
    "RoleBinding": (
        "kubernetes:rbac.authorization.k8s.io/v1:RoleBinding",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "a"},
        },
        {"role": {"roleRef": {"name": "b"}}},
    ),
}
_POD: Final = {
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
}


def what_a_change_of_another_kind_does(world: World) -> str:
    said = []
    for kind, (type_, body, changes) in OBJECTS.items():
        inputs = {**body, "kind": kind, "metadata": {"name": f"c-{world.namespace}", **SKIPPED}}
        if kind not in ("StorageClass", "PersistentVolume"):
            inputs["metadata"] = {**inputs["metadata"], "namespace": world.namespace}
        if kind == "Job":
            inputs["spec"] = {**body["spec"], "template": _POD}
        made = world.resource(type_, "c")
        made.create(inputs)
        for name, change in changes.items():
            said.append(f"{kind} {name}: {made.step(_merged(inputs, change))}")
    return ", ".join(said)


def what_a_change_of_a_custom_resource_does(world: World) -> str:
    worker = world.resource(NODESET, "worker")
    worker.create(nodeset(world))
    changes = {
        "nothing": nodeset(world),
        "replicas": nodeset(world, replicas=3),
        "image": nodeset(world, munge={"image": {"repository": "other"}, "resources": {}}),
    }
    return ", ".join(f"{name}: {worker.step(inputs)}" for name, inputs in changes.items())


def nodeset(world: World, **spec: Any) -> Values:
    metadata = {"name": "worker", "namespace": world.namespace}
    return {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": metadata,
        "spec": {
            "munge": {"image": {"repository": "m"}, "resources": {}},
            "slurmd": {
                "image": {"repository": "s"},
                "resources": {},
                "volumes": {"spool": {"emptyDir": {}}, "jail": {"emptyDir": {}}},
            },
            **spec,
        },
    }


def a_name_that_is_not_declared(world: World) -> str:
    note = world.resource(CONFIG_MAP, "notes")
    inputs = world.config_map(a="1")
    del inputs["metadata"]["name"]
    note.create(inputs)
    name = note.output("metadata", "name")
    length = len(name.removeprefix("notes-"))
    named = world.config_map(name, a="1")
    return (
        f"notes- and {length} letters, id is namespace/name: {note.id.endswith('/' + name)}, "
        f"again: {note.step(inputs)}, written down: {note.step(named)}, "
        f"named otherwise: {note.step(world.config_map('other', a='1'))}"
    )


def an_unknown_field(world: World) -> str:
    wrong = {**world.config_map(a="1"), "dta": {"a": "1"}}
    note = world.resource(CONFIG_MAP, "note")
    preview = refusal(lambda: note.create(wrong, preview=True))
    return f"preview {preview}; create {refusal(lambda: note.create(wrong))}"


def a_value_of_a_wrong_type(world: World) -> str:
    wrong = {**world.config_map(), "data": {"a": {"b": "c"}}}
    preview = refusal(lambda: world.resource(CONFIG_MAP, "note").create(wrong, preview=True))
    created = refusal(lambda: world.resource(CONFIG_MAP, "note").create(wrong))
    return f"preview {preview.partition(':')[0]}; create {created.partition(':')[0]}"


def a_namespace_that_is_not_there(world: World) -> str:
    inputs = world.config_map(a="1")
    inputs["metadata"]["namespace"] = "nowhere"
    note = world.resource(CONFIG_MAP, "note")
    preview = refusal(lambda: note.create(inputs, preview=True))
    return f"preview {preview}; create {refusal(lambda: note.create(inputs))}"


def a_kind_that_the_server_does_not_know(world: World) -> str:
    metadata = {"name": "note", "namespace": world.namespace}
    inputs = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "spec": {}}
    thing = world.resource("kubernetes:example.com/v1:Thing", "thing")
    preview = refusal(lambda: thing.create(inputs, preview=True))
    return f"preview {preview}; create {refusal(lambda: thing.create(inputs))}"


def a_preview_of_a_new_object(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    state = note.create(world.config_map(a="1"), preview=True)
    there = world.client.get(world.config_map()) is not None
    return f"data {state['data']}, unknown: {', '.join(unknown_keys(state))}; made: {there}"


def a_preview_with_a_value_that_comes_later(world: World) -> str:
    inputs = {**world.config_map(), "data": {"a": UNKNOWN}}
    state = world.resource(CONFIG_MAP, "note").create(inputs, preview=True)
    return f"data {state['data']}"


def a_refresh_of_what_is_unchanged(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    there = note.refresh()
    return f"there: {there}, then {note.step(world.config_map(a='1'))}"


def a_refresh_of_what_is_gone(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    world.client.delete(world.config_map())
    return f"there: {note.refresh()}, delete {refusal(note.delete)}"


def a_refresh_of_a_field_changed_by_hand(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    by_hand(world, {**world.config_map(), "data": {"a": "2", "b": "3"}})
    note.refresh()
    return f"inputs {reveal(note.inputs)['data']}, then {note.step(world.config_map(a='1'))}"


def a_refresh_of_a_secret_changed_by_hand(world: World) -> str:
    key = world.resource(SECRET, "key")
    key.create(world.secret(a="1"))
    by_hand(world, world.secret(a="2"))
    key.refresh()
    return f"then {key.step(world.secret(a='1'))}; secret: {', '.join(secret_keys(key.state))}"


def secrets_of_the_state(world: World) -> str:
    key = world.resource(SECRET, "key")
    key.create(world.secret(a="planted"))
    open_inputs = {**world.secret(a="planted"), "stringData": {"a": "planted"}}
    inputs = world.resource(SECRET, "open").check(open_inputs)
    shown = _open_text(key.state)
    return (
        f"declared in the open: {secret_keys(inputs)}, "
        f"text in the open: {'planted' in shown}, encoded in the open: {'cGxhbnRlZA' in shown}"
    )


def a_secret_in_a_custom_resource(world: World) -> str:
    worker = world.resource(NODESET, "worker")
    inputs = nodeset(world)
    inputs["metadata"]["labels"] = {"token": Secret("planted")}
    worker.create(inputs)
    return f"in the open: {'planted' in _open_text(worker.state)}"


def outputs_that_nobody_declared(world: World) -> str:
    made = world.resource(NAMESPACE, "made")
    name = f"{world.namespace}-made"
    made.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    keys = ("uid", "resourceVersion", "labels")
    there = [key for key in keys if made.output("metadata", key)]
    return f"metadata {there}, status {made.output('status')}"


def what_an_object_waits_for(world: World) -> str:
    inputs = nodeset(world)
    inputs["metadata"]["annotations"] = {
        "pulumi.com/waitFor": "jsonpath={.status.phase}=Ready",
        "pulumi.com/timeoutSeconds": "2",
    }
    worker = world.resource(NODESET, "worker")
    answer = refusal(lambda: worker.create(inputs))
    kept = bool(worker.id)
    status = {"phase": "Ready", "replicas": 1}
    if kept:
        world.client.apply_status({**_key(inputs), "status": status}, field_manager="reconciler")
    then = refusal(lambda: worker.update(inputs))
    return f"{answer.partition(':')[0]}, kept: {kept}; once Ready {then.partition(':')[0]}"


def a_finalizer_that_nobody_takes(world: World) -> str:
    inputs = world.config_map(a="1")
    inputs["metadata"] |= {
        "finalizers": ["example.com/hold"],
        "annotations": {"pulumi.com/timeoutSeconds": "2"},
    }
    note = world.resource(CONFIG_MAP, "note")
    note.create(inputs)
    with collected(world, inputs):
        answer = refusal(note.delete)
    world.client.merge_patch(world.live(inputs), {"metadata": {"finalizers": []}})
    return answer


def a_deletion(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    with collected(world, world.config_map()):
        answer = refusal(note.delete)
    return f"{answer}, there: {world.client.get(world.config_map()) is not None}"


def _gone_answers(world: World, made: Resource, inputs: Values, change: Values) -> str:
    """What each call says; the reason of the first refusal is the same in all."""
    calls: dict[str, Callable[[], Any]] = {
        "preview": lambda: made.create(inputs, preview=True),
        "diff": lambda: made.step(inputs),
        "update": lambda: made.update(change),
        "refresh": lambda: made.refresh(),
        "delete": made.delete,
    }
    said = []
    for name, call in calls.items():
        try:
            answer = call()
            said.append(
                f"{name} {answer}" if isinstance(answer, str | bool) else f"{name} accepted"
            )
        except RefusedError:
            said.append(f"{name} refused")
    return ", ".join(said)


def an_object_of_a_cluster_that_is_gone(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    with started(world, **unreachable(world)):
        note._plugin = world.plugin
        plain = _gone_answers(world, note, world.config_map(a="1"), world.config_map(a="2"))
    with started(world, {"PULUMI_K8S_DELETE_UNREACHABLE": "true"}, **unreachable(world)):
        note._plugin = world.plugin
        forgotten = _gone_answers(world, note, world.config_map(a="1"), world.config_map(a="2"))
    return f"{plain}; with DELETE_UNREACHABLE: {forgotten}"


def a_release_of_a_cluster_that_is_gone(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release())
    change = world.release(values={"text": "other"})
    with started(world, **unreachable(world)):
        tiny._plugin = world.plugin
        plain = _gone_answers(world, tiny, world.release(), change)
    with started(world, {"PULUMI_K8S_DELETE_UNREACHABLE": "true"}, **unreachable(world)):
        tiny._plugin = world.plugin
        forgotten = _gone_answers(world, tiny, world.release(), change)
    return f"{plain}; with DELETE_UNREACHABLE: {forgotten}"


def the_words_of_a_cluster_that_is_gone(world: World) -> str:
    note = world.resource(CONFIG_MAP, "note")
    note.create(world.config_map(a="1"))
    with started(world, **unreachable(world)):
        note._plugin = world.plugin
        return f"{refusal(note.delete)}; refresh {refusal(note.refresh)}"


def a_release(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release())
    status = tiny.output("status") or {}
    first = {key: status.get(key) for key in ("status", "revision", "version", "appVersion")}
    tiny.update(world.release(values={"text": "other"}))
    return f"id {tiny.id}, {first}, then revision {tiny.output('status', 'revision')}"


def what_a_change_of_a_release_does(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release())
    changes = {
        "nothing": world.release(),
        "values": world.release(values={"text": "other"}),
        "timeout": world.release(timeout=4),
        "name": world.release(name="other"),
        "namespace": world.release(namespace="kube-public"),
    }
    return ", ".join(f"{name}: {tiny.step(inputs)}" for name, inputs in changes.items())


def a_refresh_of_a_release(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release())
    there = tiny.refresh()
    return f"there: {there}, then {tiny.step(world.release())}"


def a_chart_that_is_not_served(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    return refusal(lambda: tiny.check(world.release("missing")))


def secrets_of_a_release(world: World) -> str:
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release(values={"text": Secret("planted")}))
    return f"in the open: {'planted' in _open_text(tiny.state)}"


def a_release_whose_name_is_taken(world: World) -> str:
    world.resource(RELEASE, "tiny").create(world.release())
    return refusal(lambda: world.resource(RELEASE, "tiny").create(world.release()))


def a_release_after_a_lost_state(world: World) -> str:
    """With the program's own hook, which runs before every create."""
    drop_unknown(world.client, "tests", release="tiny", namespace=world.namespace)
    world.resource(RELEASE, "tiny").create(world.release())
    dropped = drop_unknown(world.client, "tests", release="tiny", namespace=world.namespace)
    again = world.resource(RELEASE, "tiny")
    answer = refusal(lambda: again.create(world.release(values={"text": "again"})))
    return f"dropped {len(dropped)}, {answer}, revision {again.output('status', 'revision')}"


def a_release_whose_change_was_killed(world: World) -> str:
    """With the program's own hook, which runs before every update."""
    drop_unfinished(world.client, "tests", release="tiny", namespace=world.namespace)
    tiny = world.resource(RELEASE, "tiny")
    tiny.create(world.release())
    (record,) = _helm_records(world)
    # What a killed Helm leaves: the record of a revision that nobody finished.
    status = {"status": "pending-upgrade", "version": "2"}
    labels = {**record["metadata"]["labels"], **status}
    name = f"{record['metadata']['name'].rpartition('.')[0]}.v2"
    metadata = {"name": name, "namespace": world.namespace, "labels": labels}
    body = {key: record[key] for key in ("apiVersion", "kind", "type")}
    world.client.apply({**body, "metadata": metadata, "data": _pending(record)})
    change = world.release(values={"text": "other"})
    answer = refusal(lambda: tiny.update(change))
    dropped = drop_unfinished(world.client, "tests", release="tiny", namespace=world.namespace)
    again = refusal(lambda: tiny.update(change))
    revision = tiny.output("status", "revision")
    return f"{answer}; dropped {len(dropped)}, then {again}, revision {revision}"


def _helm_records(world: World) -> list[Values]:
    return world.client.list("v1", "Secret", world.namespace, label="owner=helm,name=tiny")


def _pending(record: Values) -> Values:
    """The content of Helm's record, said to be of a second revision that is under way."""
    packed = (record.get("data") or {}).get("release")
    if not packed:
        return {}
    # Source: helm/helm pkg/storage/driver/util.go, encodeRelease, v3.20.2.
    text = gzip.decompress(base64.b64decode(base64.b64decode(packed)))
    release = json.loads(text)
    release["version"] = 2
    release["info"]["status"] = "pending-upgrade"
    again = base64.b64encode(gzip.compress(json.dumps(release).encode()))
    return {"release": base64.b64encode(again).decode()}


def a_release_over_an_object_of_somebody(world: World) -> str:
    by_hand(world, world.config_map("tiny-note", text="theirs"))
    tiny = world.resource(RELEASE, "tiny")
    return refusal(lambda: tiny.create(world.release()))


def _open_text(values: Any) -> str:
    """The text of all that is not marked secret."""
    if isinstance(values, Secret):
        return ""
    if isinstance(values, dict):
        return " ".join(_open_text(each) for each in values.values())
    if isinstance(values, list):
        return " ".join(_open_text(each) for each in values)
    return str(values)


def _key(inputs: Values) -> Values:
    metadata = {key: inputs["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": inputs["apiVersion"], "kind": inputs["kind"], "metadata": metadata}


def _merged(below: Values, above: Values) -> Values:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(below.get(key), dict)
        merged[key] = _merged(below[key], value) if both else value
    return merged


CASES: tuple[Callable[[World], str], ...] = (
    a_new_object_that_somebody_made,
    a_new_object_that_somebody_made_without_upsert,
    a_new_object_that_somebody_made_without_force,
    a_field_that_somebody_took,
    a_field_that_somebody_took_without_force,
    a_field_that_is_no_longer_declared,
    what_a_change_does,
    what_a_change_of_a_fixed_one_does,
    what_a_change_does_where_content_is_fixed,
    what_a_change_of_a_secret_does,
    what_a_change_of_a_secrets_type_does,
    what_a_change_of_another_kind_does,
    what_a_change_of_a_custom_resource_does,
    a_name_that_is_not_declared,
    an_unknown_field,
    a_value_of_a_wrong_type,
    a_namespace_that_is_not_there,
    a_kind_that_the_server_does_not_know,
    a_preview_of_a_new_object,
    a_preview_with_a_value_that_comes_later,
    a_refresh_of_what_is_unchanged,
    a_refresh_of_what_is_gone,
    a_refresh_of_a_field_changed_by_hand,
    a_refresh_of_a_secret_changed_by_hand,
    secrets_of_the_state,
    a_secret_in_a_custom_resource,
    outputs_that_nobody_declared,
    what_an_object_waits_for,
    a_finalizer_that_nobody_takes,
    a_deletion,
    an_object_of_a_cluster_that_is_gone,
    a_release_of_a_cluster_that_is_gone,
    the_words_of_a_cluster_that_is_gone,
    a_release,
    what_a_change_of_a_release_does,
    a_refresh_of_a_release,
    a_chart_that_is_not_served,
    secrets_of_a_release,
    a_release_whose_name_is_taken,
    a_release_after_a_lost_state,
    a_release_whose_change_was_killed,
    a_release_over_an_object_of_somebody,
)
