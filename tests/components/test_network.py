"""The network: what the stack brings is used, the rest is made, the address always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.components.base import UNLABELLED
from stacks.spec import StackSpec
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, plain

KINDS = ("Network", "Subnet", "Allocation")


def made(recorder: Recorder) -> list[str]:
    return [kind for kind in KINDS if recorder.of(f"nebius:vpc/v1:{kind}")]


def subnets_in_use(recorder: Recorder) -> set[str]:
    cluster = recorder.one("nebius:mk8s/v1:Cluster").inputs["spec"]["control_plane"]["subnet_id"]
    allocation = recorder.one("nebius:vpc/v1:Allocation").inputs["spec"]
    templates = (
        each.inputs["spec"]["template"] for each in recorder.of("nebius:mk8s/v1:NodeGroup")
    )
    nodes = {template["network_interfaces"][0]["subnet_id"] for template in templates}
    return {cluster, allocation["ipv4_public"]["subnet_id"], *nodes}


@pytest.mark.feature("S002-23")
def test_a_stack_that_brings_nothing_has_all_of_it_made(deployed: Deploy) -> None:
    recorder = deployed("local")
    assert made(recorder) == ["Network", "Subnet", "Allocation"]
    assert subnets_in_use(recorder) == {"subnet-local-subnet"}


@pytest.mark.feature("S003-60")
def test_a_company_name_is_a_label_of_every_cloud_resource(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h200-elastic")
    recorder = deployed(replace(spec, nebius=replace(spec.nebius, company_name="your-company")))
    named = {
        each.name: each.inputs["metadata"]["labels"].get("company")
        for each in recorder.registered
        if each.type.startswith("nebius:") and each.type not in UNLABELLED
    }
    assert len(named) > 10
    assert set(named.values()) == {"your-company"}


@pytest.mark.feature("S002-23")
def test_a_network_that_the_stack_brings_gets_a_subnet(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("local")
    own = replace(spec.nebius, network_id="vpcnetwork-e00mine")
    recorder = deployed(replace(spec, nebius=own))
    assert made(recorder) == ["Subnet", "Allocation"]
    subnet = recorder.one("nebius:vpc/v1:Subnet").inputs["spec"]
    assert subnet["network_id"] == "vpcnetwork-e00mine"


@pytest.mark.feature("S002-23")
def test_a_subnet_that_the_stack_brings_is_used_everywhere(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("local")
    recorder = deployed(replace(spec, nebius=replace(spec.nebius, subnet_id="vpcsubnet-e00mine")))
    assert made(recorder) == ["Allocation"]
    assert subnets_in_use(recorder) == {"vpcsubnet-e00mine"}


def test_a_private_door_takes_its_address_from_the_private_pool(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("l40s-dev")
    recorder = deployed(replace(spec, login=replace(spec.login, public_ip=False)))
    allocation = recorder.one("nebius:vpc/v1:Allocation")
    assert allocation.inputs["spec"] == {"ipv4_private": {"subnet_id": "subnet-l40s-dev-subnet"}}
    public = deployed("l40s-dev").one("nebius:vpc/v1:Allocation")
    assert allocation.name != public.name, "one allocation cannot become of the other kind"


def test_the_address_outlives_the_cluster(deployed: Deploy) -> None:
    """Deleted before it, the address is taken anew by the cluster's balancer and stays behind."""
    recorder = deployed("l40s-dev")
    cluster = recorder.one("nebius:mk8s/v1:Cluster")
    assert recorder.one("nebius:vpc/v1:Allocation").urn in cluster.depends_on


@pytest.mark.feature("S003-69")
def test_the_address_is_the_allocations_without_its_mask(deployed: Deploy) -> None:
    outputs = plain(deployed("l40s-dev").outputs)
    assert outputs["login_ip"] == "203.0.113.7"
    assert outputs["ssh_command"] == "ssh root@203.0.113.7"
