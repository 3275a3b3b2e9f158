"""What counts as drift, what needs a replacement, and what is not served."""

from __future__ import annotations

import pytest

from infra.local.plugins.kubernetes import Kubernetes
from infra.local.plugins.kubernetes_objects import project
from infra.providers.engine.provider import UNKNOWN, ProviderError

URN_TYPE = "kubernetes:core/v1:ConfigMap"


def diff(old, new, id="ns/cm", **options):
    plugin = Kubernetes()
    plugin.configure(options)
    return plugin.of(URN_TYPE).diff(id, old, old, new)


def config_map(name="cm", kind="ConfigMap", **data):
    metadata = {"namespace": "ns", **({"name": name} if name else {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}


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


@pytest.mark.parametrize(
    ("kind", "option"),
    [("ConfigMap", "enableConfigMapMutable"), ("Secret", "enableSecretMutable")],
)
def test_data_replaces_unless_the_provider_makes_it_mutable(kind, option):
    old, new = config_map(kind=kind, a="1"), config_map(kind=kind, a="2")
    assert diff(old, new).replaces == ("data.a",)
    assert diff(old, new, **{option: "true"}).replaces == ()


def test_an_automatic_name_that_is_written_down_later_is_no_change():
    assert diff(config_map(name=None), config_map("cm-1"), id="ns/cm-1").detailed == {}


def test_fields_that_the_program_does_not_declare_are_no_drift():
    live = {"spec": {"replicas": 1, "paused": False}, "status": {"phase": "x"}}
    assert project(live, {"spec": {"replicas": 2}}) == {"spec": {"replicas": 1}}


@pytest.mark.parametrize(
    ("live", "declared"), [("1", "1000m"), ("1Gi", "1024Mi"), ("2", 2), ("500m", "0.5")]
)
def test_quantities_that_mean_the_same_are_no_drift(live, declared):
    assert project({"cpu": live}, {"cpu": declared}) == {"cpu": declared}


def test_a_quantity_that_means_more_is_drift():
    assert project({"cpu": "2"}, {"cpu": "1000m"}) == {"cpu": "2"}


def test_items_that_were_added_by_hand_are_drift():
    assert project({"a": [{"x": 1, "d": 0}, {"x": 2}]}, {"a": [{"x": 1}]}) == {
        "a": [{"x": 1}, {"x": 2}]
    }


def test_what_the_stand_in_does_not_serve_is_refused_in_the_preview():
    """The official plugin waits, and reads files; here they would be left out without a word."""
    plugin = Kubernetes()
    waits = {"pulumi.com/waitFor": "condition=Ready"}
    inputs = {**config_map(), "metadata": {"name": "cm", "annotations": waits}}
    _, failures = plugin.of(URN_TYPE).check({}, inputs)
    assert [path for path, _ in failures] == ["metadata.annotations"]
    assert "pulumi.com/waitFor: the stand-in does not serve it" in dict(failures).popitem()[1]
    for unknown in (UNKNOWN, {"annotations": UNKNOWN}):
        assert not plugin.of(URN_TYPE).check({}, {**config_map(), "metadata": unknown})[1]
    release = {"chart": "c", "valueYamlFiles": ["values.yaml"]}
    _, failures = plugin.of("kubernetes:helm.sh/v3:Release").check({}, release)
    assert [path for path, _ in failures] == ["valueYamlFiles"]


def test_components_of_the_official_plugin_are_refused_by_name():
    plugin = Kubernetes()
    with pytest.raises(ProviderError, match=r"helm\.v3\.Release only; install the official"):
        plugin.of("kubernetes:helm.sh/v4:Chart").check({}, {})


def test_a_provider_without_a_kubeconfig_never_takes_the_users_own(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "mine"))
    plugin = Kubernetes()
    with pytest.raises(ProviderError, match="kubeconfig: is required"):
        plugin.of(URN_TYPE).create("urn:pulumi:dev::p::t::cm", config_map())
