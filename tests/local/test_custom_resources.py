"""Custom resources of Soperator are upgraded with its version, on a real API server."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.kube import KubeClient
from infra.local.kube import api_server
from infra.local.kube.api_server import ApiServerConfig
from infra.providers.engine.provider import ProviderError
from infra.providers.nebius.sdk import ENDPOINT_VARIABLE
from infra.providers.soperator.crds import (
    FOLDER,
    CustomResourcesProvider,
    LostVersionError,
    apply_crds,
    missing,
)
from tests.local.kube_server import config_in, kubeconfig
from tests.unit.kube.test_crds import ABSENT, REAL

pytestmark = pytest.mark.local
CHART = "oci://cr.eu-north1.nebius.cloud/soperator/helm-soperator"
NODESETS = "nodesets.slurm.nebius.ai"
JAILED = "jailedconfigs.slurm.nebius.ai"
IN_CHART = (JAILED, NODESETS)
URN = "urn:pulumi:local::soperator-stack::soperator:kube:CustomResources::crds"
Object = dict[str, Any]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerConfig]:
    """An API server that knows none of the kinds yet."""
    if not REAL.is_dir():
        pytest.skip(ABSENT)
    config = config_in(tmp_path_factory.mktemp("kube"))
    try:
        api_server.start(config)
        yield config
    finally:
        api_server.stop(config)


@pytest.fixture(scope="module")
def client(config: ApiServerConfig) -> KubeClient:
    return KubeClient(config.access())


@pytest.fixture(scope="module")
def crds() -> list[Object]:
    """Two of Soperator 4.1.7; all six are megabytes, and test_kube_real_crds.py applies those."""
    files = [REAL / f"slurm.nebius.ai_{name.partition('.')[0]}.yaml" for name in IN_CHART]
    return [yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader) for path in files]


@pytest.fixture
def chart(
    crds: list[Object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[Object], None]], None]:
    """Makes the definitions of another version out of these, with a change to NodeSet's."""

    def publish(change: Callable[[Object], None]) -> None:
        changed = copy.deepcopy(crds)
        (nodesets,) = [crd for crd in changed if crd["metadata"]["name"] == NODESETS]
        change(nodesets)
        for crd in changed:
            path = tmp_path / f"{crd['metadata']['name']}.yaml"
            path.write_text(yaml.dump(crd, Dumper=yaml.CSafeDumper))
        monkeypatch.setenv(FOLDER, str(tmp_path))
        monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:1")

    return publish


def properties(crd: Object) -> Object:
    """Fields of a NodeSet's spec."""
    return crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]


def unchanged(_: Object) -> None:
    pass


def with_field(crd: Object) -> None:
    properties(crd)["updateStrategy"] = {"type": "string", "enum": ["slurmAware"]}


def without_the_stored_version(crd: Object) -> None:
    crd["spec"]["versions"][0]["name"] = "v9"


def inputs(config: ApiServerConfig, version: str) -> dict[str, Any]:
    return {
        "chart": CHART,
        "version": version,
        "group": "slurm.nebius.ai",
        "kubeconfig": kubeconfig(config),
    }


def live_fields(client: KubeClient) -> Object:
    found = client.get(crd_of(NODESETS))
    assert found is not None
    return properties(found)


@pytest.mark.feature("S000-02")
def test_the_definitions_live_through_an_upgrade_and_the_way_back(
    config: ApiServerConfig, client: KubeClient, chart: Callable[..., None]
) -> None:
    provider = CustomResourcesProvider()
    chart(unchanged)
    before = inputs(config, "4.1.7")
    id_, state = provider.create(URN, before)
    assert id_ == "helm-soperator"
    assert tuple(state["definitions"]) == IN_CHART
    assert "updateStrategy" not in live_fields(client)

    chart(with_field)
    after = inputs(config, "4.2.0")
    assert set(provider.diff(id_, before, state, after).detailed) == {"version"}
    upgraded = provider.update(URN, id_, state, after)
    assert live_fields(client)["updateStrategy"]["enum"] == ["slurmAware"]
    changed = {n for n, d in upgraded["definitions"].items() if d != state["definitions"][n]}
    assert changed == {NODESETS}

    chart(unchanged)
    back = provider.update(URN, id_, upgraded, before)
    assert back["definitions"] == state["definitions"]
    assert "updateStrategy" not in live_fields(client)


def test_what_helm_installed_is_taken_over_with_what_it_set(
    config: ApiServerConfig, client: KubeClient, crds: list[Object]
) -> None:
    """A deployment of an earlier program has the definitions that Helm made from crds/."""
    old = copy.deepcopy(crds)
    for crd in old:
        if crd["metadata"]["name"] == NODESETS:
            properties(crd)["removedLater"] = {"type": "string"}
        client.apply(crd, field_manager="helm")
    assert "removedLater" in live_fields(client)
    apply_crds(client, crds)
    assert "removedLater" not in live_fields(client)


def test_a_version_in_which_objects_are_stored_is_not_taken_away(
    config: ApiServerConfig, client: KubeClient, chart: Callable[..., None]
) -> None:
    provider = CustomResourcesProvider()
    chart(unchanged)
    before = inputs(config, "4.1.7")
    id_, state = provider.create(URN, before)
    chart(without_the_stored_version)
    with pytest.raises(ProviderError, match="objects are stored as v1alpha1, which the new"):
        provider.update(URN, id_, state, inputs(config, "9.0.0"))
    assert "v1alpha1" in str(client.get(crd_of(NODESETS)))


def crd_of(name: str) -> Object:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
    }


def test_the_refusal_comes_before_the_first_change(client: KubeClient, crds: list[Object]) -> None:
    apply_crds(client, crds)
    wanted = copy.deepcopy(crds)
    first = wanted[0]
    first["metadata"].setdefault("labels", {})["changed"] = "yes"
    without_the_stored_version(wanted[-1])
    with pytest.raises(LostVersionError):
        apply_crds(client, wanted)
    live = client.get(first)
    assert live is not None
    assert "changed" not in live["metadata"].get("labels", {})


def test_a_refresh_sees_a_definition_that_somebody_deleted(
    config: ApiServerConfig, client: KubeClient, chart: Callable[..., None]
) -> None:
    provider = CustomResourcesProvider()
    chart(unchanged)
    declared = inputs(config, "4.1.7")
    id_, state = provider.create(URN, declared)
    assert provider.read(id_, state, declared) is not None
    client.delete(crd_of(JAILED))
    client.wait_gone(crd_of(JAILED), timeout_s=30)
    assert missing(client, state["definitions"]) == [JAILED]
    assert provider.read(id_, state, declared) is None


def test_a_delete_leaves_them_because_objects_would_go_with_them(
    config: ApiServerConfig, client: KubeClient, chart: Callable[..., None]
) -> None:
    provider = CustomResourcesProvider()
    chart(unchanged)
    id_, state = provider.create(URN, inputs(config, "4.1.7"))
    provider.delete(id_, state)
    assert missing(client, state["definitions"]) == []


def test_a_definition_that_the_api_server_refuses_is_told_with_its_name(
    config: ApiServerConfig, chart: Callable[..., None]
) -> None:
    def broken(crd: Object) -> None:
        properties(crd)["bad"] = {"type": "no-such-type"}

    chart(broken)
    with pytest.raises(ProviderError, match=f"custom resources of .*{NODESETS}"):
        CustomResourcesProvider().create(URN, inputs(config, "4.1.8"))
