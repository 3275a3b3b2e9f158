"""The only subnet of a project is found; none or several are refused with what to do."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from infra.providers.nebius.adoption import DiscoveryError, discovered
from stacks.load import load_stack

SUBNET = "nebius:vpc/v1:Subnet"
URN = f"urn:pulumi:local::soperator-stack::{SUBNET}::second"


@pytest.fixture
def spec(public_key_file):
    spec = load_stack("local")
    return replace(spec, nebius=replace(spec.nebius, discover_network=True))


def test_a_stack_that_asks_for_nothing_asks_nobody(public_key_file, monkeypatch):
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", "http://127.0.0.1:1")
    spec = load_stack("local")
    assert discovered(spec) is spec


def test_the_only_subnet_is_taken_with_its_network(provider, spec):
    found = discovered(spec).nebius
    assert found.subnet_id.startswith("vpcsubnet-")
    assert found.network_id.startswith("vpcnetwork-")


def test_of_several_the_user_chooses(provider, spec):
    network = discovered(spec).nebius.network_id
    inputs = {
        "metadata": {"parent_id": spec.nebius.project_id, "name": "second"},
        "spec": {"network_id": network},
    }
    id_, _ = provider.of(SUBNET).create(URN, inputs)
    try:
        with pytest.raises(DiscoveryError) as caught:
            discovered(spec)
    finally:
        provider.of(SUBNET).delete(id_, {})
    message = str(caught.value)
    assert message.startswith("local.nebius.discover_network: 2 subnets in project-e00p; set it to")
    assert f"{id_} (second)" in message
    assert len(re.findall(r"vpcsubnet-\w+", message)) == 2


def test_a_project_without_one_is_told_how_to_get_one(provider, spec):
    elsewhere = replace(spec, nebius=replace(spec.nebius, project_id="project-e00empty"))
    with pytest.raises(DiscoveryError, match=r"no subnet in project-e00empty; set it to false"):
        discovered(elsewhere)


def test_an_api_that_is_down_is_one_line(provider, spec, monkeypatch):
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", "http://127.0.0.1:1")
    from infra.providers.nebius import sdk

    sdk.shared_sdk.cache_clear()
    with pytest.raises(DiscoveryError, match=r"^local.nebius.discover_network: ") as caught:
        discovered(spec)
    assert "\n" not in str(caught.value)
