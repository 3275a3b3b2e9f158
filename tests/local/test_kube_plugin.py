"""The kubernetes stand-in's behaviour against a real API server, without the engine."""

from __future__ import annotations

import json
import sys

import pytest

from infra.clients.kube import KubeClient
from infra.local.plugins import kubernetes_objects
from infra.local.plugins.kubernetes import Kubernetes
from infra.providers.engine.provider import (
    UNKNOWN,
    ProviderError,
    Secret,
    reveal,
)
from stacks.errors import UserError
from tests.conformance.kubernetes_cases import PROGRAM
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = pytest.mark.local

CONFIG_MAP = "kubernetes:core/v1:ConfigMap"
SECRET = "kubernetes:core/v1:Secret"
NODESET = "kubernetes:slurm.nebius.ai/v1alpha1:NodeSet"
RELEASE = "kubernetes:helm.sh/v3:Release"
SPEC = {
    "munge": {"image": {"repository": "m"}, "resources": {}},
    "slurmd": {
        "image": {"repository": "s"},
        "resources": {},
        "volumes": {"spool": {"emptyDir": {}}, "jail": {"emptyDir": {}}},
    },
}
CHARTS = "oci://cr.eu-north1.nebius.cloud/soperator"


def urn(name):
    return f"urn:pulumi:dev::proj::{CONFIG_MAP}::{name}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("kube")) as config:
        yield config


@pytest.fixture(scope="module")
def client(cluster):
    return KubeClient(cluster.access())


@pytest.fixture
def plugin(cluster):
    made = Kubernetes()
    made.configure({"kubeconfig": kubeconfig(cluster), **PROGRAM})
    return made


@pytest.fixture
def namespace(client, plugin, request):
    name = f"t-{abs(hash(request.node.name))}"
    inputs = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    client.apply(inputs)
    yield name
    for item in client.list("slurm.nebius.ai/v1alpha1", "NodeSet", name):
        item["metadata"].pop("managedFields", None)
        client.apply({**_bare(item), "metadata": {**_bare(item)["metadata"], "finalizers": []}})
    # Of a release, and in no namespace: the next release of that name would be refused it.
    for item in client.list("scheduling.k8s.io/v1", "PriorityClass"):
        if "meta.helm.sh/release-name" in (item["metadata"].get("annotations") or {}):
            client.delete(item)
    plugin.cancelled.clear()
    plugin.of("kubernetes:core/v1:Namespace").delete(name, inputs)


def _bare(item):
    metadata = {key: item["metadata"][key] for key in ("name", "namespace")}
    return {"apiVersion": item["apiVersion"], "kind": item["kind"], "metadata": metadata}


def config_map(namespace, name="cm", **data):
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def nodeset_values(*names):
    return {
        "nodesets": [
            {
                "name": name,
                "munge": {"resources": {"cpu": "500m", "memory": "1Gi"}},
                "slurmd": {
                    "resources": {"cpu": "4", "memory": "8Gi"},
                    "volumes": {"spool": {"emptyDir": {}}, "jail": {"emptyDir": {}}},
                },
            }
            for name in names
        ]
    }


def release(namespace, *names, **changes):
    return {
        "name": "nodesets",
        "namespace": namespace,
        "chart": f"{CHARTS}/helm-nodesets",
        "version": "4.1.7",
        "values": nodeset_values(*names),
        "skipAwait": True,
        **changes,
    }


def nodeset(namespace, name="worker"):
    return {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": {"name": name, "namespace": namespace},
    }


def test_a_preview_leaves_nothing_behind(plugin, client, namespace):
    inputs = config_map(namespace, a="1")
    state = plugin.of(CONFIG_MAP).preview(urn("cm"), "", {}, inputs)
    assert state == inputs
    assert client.get(inputs) is None


def test_a_preview_checks_the_fields_of_an_object_whose_namespace_comes_later(plugin):
    inputs = {**config_map("not-there-yet", a="1"), "dta": {}}
    with pytest.raises(UserError, match=r"ConfigMap .*dta: field not declared in schema"):
        plugin.of(CONFIG_MAP).preview(urn("cm"), "", {}, inputs)


def test_a_preview_with_unknown_values_asks_nobody():
    plugin = Kubernetes()
    plugin.configure({"kubeconfig": UNKNOWN, **PROGRAM})
    inputs = config_map("default", a=UNKNOWN)
    assert plugin.of(CONFIG_MAP).preview(urn("cm"), "", {}, inputs) == inputs


def test_a_preview_without_an_answer_passes_and_says_so_once(plugin, cluster):
    away = json.loads(kubeconfig(cluster))
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    plugin.configure({"kubeconfig": json.dumps(away), **PROGRAM})
    said = []
    plugin.engine.info = lambda urn, line, **_: said.append(line)
    for name in ("one", "two"):
        plugin.of(CONFIG_MAP).preview(urn(name), "", {}, config_map("default", name))
    assert len(said) == 1
    assert "not checked by the API server" in said[0]
    with pytest.raises(UserError, match="no answer"):
        plugin.of(CONFIG_MAP).create(urn("one"), config_map("default", "one"))


def test_drift_of_a_declared_field_is_seen_and_defaults_are_not(plugin, client, namespace):
    inputs = {**nodeset(namespace), "spec": SPEC}
    id_, state = plugin.of(NODESET).create(urn("worker"), inputs)
    assert client.get(inputs)["spec"].keys() > SPEC.keys()
    assert plugin.of(NODESET).read(id_, state, inputs) == (id_, state, inputs)

    note = config_map(namespace, a="1")
    id_, state = plugin.of(CONFIG_MAP).create(urn("cm"), note)
    client.apply({**note, "data": {"a": "2", "b": "by hand"}}, field_manager="pulumi")
    _, _, seen = plugin.of(CONFIG_MAP).read(id_, state, note)
    assert seen["data"] == {"a": "2"}


def test_a_secret_stays_wrapped_and_its_drift_is_seen(plugin, client, namespace):
    inputs = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key", "namespace": namespace},
        "stringData": {"token": "one"},
    }
    checked, failures = plugin.of(SECRET).check({}, inputs)
    assert checked["data"] == Secret({"token": "b25l"})
    assert not list(failures)
    known = reveal(checked)
    id_, state = plugin.of(SECRET).create(urn("key"), known)
    assert state["data"] == Secret({"token": "b25l"})
    client.apply({**inputs, "stringData": {"token": "two"}})
    assert plugin.of(SECRET).read(id_, state, known)[2]["data"] == Secret({"token": "dHdv"})


def test_what_was_deleted_by_hand_is_read_as_gone_and_deletes_without_error(
    plugin, client, namespace
):
    inputs = config_map(namespace)
    id_, state = plugin.of(CONFIG_MAP).create(urn("cm"), inputs)
    client.delete(inputs)
    assert plugin.of(CONFIG_MAP).read(id_, state, inputs) is None
    plugin.of(CONFIG_MAP).delete(id_, state)


def test_a_finalizer_that_nobody_takes_is_named_when_the_time_is_over(
    plugin, client, namespace, monkeypatch
):
    monkeypatch.setattr(kubernetes_objects, "_TIMEOUT_S", 0.0)
    inputs = config_map(namespace)
    inputs["metadata"]["finalizers"] = ["test/hold"]
    id_, state = plugin.of(CONFIG_MAP).create(urn("cm"), inputs)
    with pytest.raises(UserError, match=r"ConfigMap .*/cm: waited 0 s .* test/hold"):
        plugin.of(CONFIG_MAP).delete(id_, state)
    client.apply({**inputs, "metadata": {**inputs["metadata"], "finalizers": []}})


def test_a_namespace_ends_with_objects_of_every_kind(plugin, client, namespace):
    """NodeSet is of another version than the one that its group prefers."""
    client.apply({**nodeset(namespace), "spec": SPEC})
    client.apply(config_map(namespace))
    declared = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    plugin.of("kubernetes:core/v1:Namespace").delete(namespace, declared)
    assert client.list("v1", "ConfigMap", namespace) == []
    assert client.list("slurm.nebius.ai/v1alpha1", "NodeSet", namespace) == []


def test_a_release_records_its_revision_and_prunes_what_is_no_longer_rendered(
    plugin, client, namespace
):
    inputs = release(namespace, "one", "two")
    id_, state = plugin.of(RELEASE).create(urn("nodesets"), inputs)
    assert id_ == f"{namespace}/nodesets"
    assert state["status"] == {
        "status": "deployed",
        "name": "nodesets",
        "namespace": namespace,
        "chart": "helm-nodesets",
        "version": "4.1.7",
        "appVersion": "4.1.7",
        "revision": 1,
    }
    fewer = release(namespace, "two")
    state = plugin.of(RELEASE).update(urn("nodesets"), id_, state, fewer)
    assert state["status"]["revision"] == 2
    assert client.get(nodeset(namespace, "one")) is None
    assert client.get(nodeset(namespace, "two")) is not None
    plugin.of(RELEASE).delete(id_, state)
    assert client.get(nodeset(namespace, "two")) is None
    assert client.list("v1", "ConfigMap", namespace, "local.soperator/release=nodesets") == []


def test_an_unknown_chart_is_recorded_under_its_label(plugin, client, namespace):
    inputs = release(namespace, chart=f"{CHARTS}/helm-soperator", name="operator", values={})
    _, state = plugin.of(RELEASE).create(urn("operator"), inputs)
    assert state["status"]["status"] == "deployed"
    found = client.list("v1", "ConfigMap", namespace, "local.soperator/recorded=true")
    assert [item["metadata"]["name"] for item in found] == ["release-operator"]
    assert found[0]["data"]["chart"] == "helm-soperator"


def test_another_chart_version_is_refused(plugin, namespace):
    inputs = release(namespace, "one", version="4.1.8")
    with pytest.raises(ProviderError, match=r"version '4.1.8' is not known .* cluster.soperator"):
        plugin.of(RELEASE).preview(urn("nodesets"), "", {}, inputs)


def test_a_release_refuses_what_helm_refuses(plugin, client, namespace):
    inputs = release(namespace, "worker")
    client.apply({**_bare(nodeset(namespace)), "spec": SPEC})
    missing = r'NodeSet "worker" in namespace .* missing key "meta.helm.sh/release-name"'
    with pytest.raises(ProviderError, match=missing):
        plugin.of(RELEASE).create(urn("nodesets"), inputs)
    client.delete(nodeset(namespace))
    id_, state = plugin.of(RELEASE).create(urn("nodesets"), inputs)
    with pytest.raises(ProviderError, match="cannot re-use a name that is still in use"):
        plugin.of(RELEASE).create(urn("nodesets"), inputs)
    (record,) = client.list("v1", "Secret", namespace, "owner=helm,name=nodesets")
    client.merge_patch(record, {"metadata": {"labels": {"status": "pending-upgrade"}}})
    with pytest.raises(ProviderError, match=r"another operation .* is in progress"):
        plugin.of(RELEASE).update(urn("nodesets"), id_, state, inputs)


def test_an_exec_credential_of_the_kubeconfig_opens_the_cluster(cluster, namespace):
    credential = {"status": {"token": cluster.token}}
    config = json.loads(kubeconfig(cluster))
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", f"print({json.dumps(json.dumps(credential))})"],
        }
    }
    plugin = Kubernetes()
    plugin.configure({"kubeconfig": json.dumps(config), **PROGRAM})
    id_, _ = plugin.of(CONFIG_MAP).create(urn("cm"), config_map(namespace, a="1"))
    assert id_ == f"{namespace}/cm"
