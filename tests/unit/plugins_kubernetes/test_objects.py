"""What counts as drift, what needs a replacement, and what is not served."""

from __future__ import annotations

import pytest

from infra.local.plugins.kubernetes import Kubernetes
from infra.local.plugins.kubernetes_objects import project
from infra.providers.engine.provider import UNKNOWN, ProviderError
from tests.conformance.kubernetes_cases import PROGRAM

URN_TYPE = "kubernetes:core/v1:ConfigMap"


def diff(old, new):
    return Kubernetes().of(URN_TYPE).diff("ns/cm", old, old, new)


def config_map(name="cm", **data):
    metadata = {"name": name, "namespace": "ns"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_a_new_name_replaces_and_the_old_object_may_stay_until_then():
    found = diff(config_map("cm"), config_map("other"))
    assert found.replaces == ("metadata.name",)
    assert not found.delete_before_replace


def test_another_namespace_replaces_and_the_old_object_may_stay_until_then():
    new = config_map()
    new["metadata"]["namespace"] = "elsewhere"
    found = diff(config_map(), new)
    assert found.replaces == ("metadata.namespace",)
    assert not found.delete_before_replace


def test_a_label_is_changed_in_place():
    new = config_map()
    new["metadata"]["labels"] = {"a": "1"}
    found = diff(config_map(), new)
    assert dict(found.detailed) == {"metadata.labels": "add"}
    assert found.replaces == ()


def test_content_is_changed_in_place():
    found = diff(config_map(a="1"), config_map(a="2"))
    assert dict(found.detailed) == {"data.a": "update"}
    assert found.replaces == ()


def test_fields_that_the_program_does_not_declare_are_no_drift():
    live = {"spec": {"replicas": 1, "paused": False}, "status": {"phase": "x"}}
    assert project(live, {"spec": {"replicas": 2}}) == {"spec": {"replicas": 1}}


def test_items_that_were_added_by_hand_are_drift():
    assert project({"a": [{"x": 1, "d": 0}, {"x": 2}]}, {"a": [{"x": 1}]}) == {
        "a": [{"x": 1}, {"x": 2}]
    }


def problems(type_, inputs):
    return dict(Kubernetes().of(type_).check({}, inputs)[1])


def test_what_the_program_never_sends_is_refused_in_the_preview():
    """The official plugin waits, names, and reads files; here that would be left out silently."""
    waits = {"name": "cm", "annotations": {"pulumi.com/waitFor": "condition=Ready"}}
    more = "the official plugin serves more"
    assert problems(URN_TYPE, {**config_map(), "metadata": waits, "immutable": True}) == {
        "immutable": f"unknown; has apiVersion, kind, metadata, data; {more}",
        "metadata.annotations": f"unknown; has name, namespace, labels; {more}",
        "metadata.namespace": f"is required, as a text that is not empty; {more}",
    }
    later = {"name": UNKNOWN, "namespace": "ns"}
    assert not problems(URN_TYPE, {**config_map(), "metadata": later, "data": UNKNOWN})
    place = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
    assert not problems("kubernetes:core/v1:Namespace", place)
    set_ = {"apiVersion": "a.b/v1", "kind": "Set", "metadata": {"name": "a", "namespace": "ns"}}
    assert not problems("kubernetes:a.b/v1:Set", {**set_, "spec": {"any": ["thing"]}})
    assert problems("kubernetes:a.b/v1:Set", set_).keys() == {"spec"}
    release = {"chart": "c", "valueYamlFiles": ["values.yaml"], "namespace": "ns", "version": "1"}
    found = problems("kubernetes:helm.sh/v3:Release", release)
    assert list(found) == ["valueYamlFiles", "name"]


@pytest.mark.parametrize(
    "type_",
    [
        *("kubernetes:helm.sh/v4:Chart", "kubernetes:yaml/v2:ConfigFile"),
        *("kubernetes:core/v1:Pod", "kubernetes:batch/v1:Job"),
        "kubernetes:storage.k8s.io/v1:StorageClass",
    ],
)
def test_other_types_of_the_official_plugin_are_refused_by_name(type_):
    with pytest.raises(ProviderError, match=rf"^{type_}: .* only; the official plugin"):
        Kubernetes().of(type_)


def test_a_provider_that_is_set_up_otherwise_is_refused():
    """As the program does it, objects are changed in place and taken over."""
    plugin = Kubernetes()
    plugin.configure({**PROGRAM, "kubeconfig": UNKNOWN})
    odd = {**PROGRAM, "enablePatchForce": "false", "context": "other"}
    with pytest.raises(ProviderError, match="enablePatchForce: must be true; context: is not"):
        plugin.configure(odd)


def test_an_import_is_refused():
    with pytest.raises(ProviderError, match="ns/cm: the stand-in imports nothing"):
        Kubernetes().of(URN_TYPE).read("ns/cm", {}, {})


def test_a_provider_without_a_kubeconfig_never_takes_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "mine"))
    plugin = Kubernetes()
    with pytest.raises(ProviderError, match="kubeconfig: is required"):
        plugin.of(URN_TYPE).create("urn:pulumi:dev::p::t::cm", config_map())
