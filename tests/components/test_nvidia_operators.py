"""NVIDIA operators: only where node images bring no drivers, before what needs the GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.state import Cache
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, Registered

RELEASE = "nebius:applications/v1alpha1:K8sRelease"
Load = Callable[[str], StackSpec]


def without_drivers(spec: StackSpec) -> StackSpec:
    return replace(spec, cluster=replace(spec.cluster, gpu_drivers=GpuDrivers.OPERATORS))


def before(recorder: Recorder, last: Registered) -> set[str]:
    """URNs of everything that `last` waits for, however many steps away."""
    known = {each.urn: each for each in recorder.registered}
    found: set[str] = set()
    wanted = [last.urn]
    while wanted:
        each = known[wanted.pop()]
        wanted += [urn for urn in each.depends_on if urn not in found and urn in known]
        found.update(each.depends_on)
    return found


@pytest.mark.parametrize("stack", SHIPPED)
def test_an_image_with_drivers_needs_no_operator(deployed: Deploy, stack: str) -> None:
    """Two of them would fight over the same kernel module."""
    assert deployed(stack).of(RELEASE) == []


@pytest.mark.feature("S004-35", "S004-36")
def test_the_network_comes_before_the_gpus(deployed: Deploy, load: Load) -> None:
    recorder = deployed(without_drivers(load("h100-prod")))
    network, gpu = recorder.of(RELEASE)
    assert network.inputs["spec"]["product_slug"] == "nebius/nvidia-network-operator"
    assert gpu.inputs["spec"]["product_slug"] == "nebius/nvidia-gpu-operator"
    assert network.urn in gpu.depends_on
    for each in (network, gpu):
        assert each.inputs["spec"]["cluster_id"] == "cluster-h100-prod-kube"
        assert "labels" not in each.inputs["metadata"], "an update would install it again"
    cluster = recorder.one("nebius:mk8s/v1:Cluster")
    assert "state-id" in cluster.inputs["metadata"]["labels"]


@pytest.mark.feature("S004-35", "S004-36")
def test_nodes_come_before_the_operators_and_soperator_after_them(
    deployed: Deploy, load: Load
) -> None:
    recorder = deployed(without_drivers(load("h100-prod")))
    operators = recorder.one("soperator:infra:NvidiaOperators")
    groups = {each.urn for each in recorder.of("nebius:mk8s/v1:NodeGroup")}
    releases = {each.urn for each in recorder.of(RELEASE)}
    assert groups <= set(operators.depends_on)
    assert releases <= before(recorder, recorder.one("soperator:infra:Soperator"))


def test_a_stack_without_gpus_has_nothing_to_drive(deployed: Deploy, load: Load) -> None:
    spec = without_drivers(load("local"))
    (worker,) = spec.nodes.workers
    cpus = replace(worker, platform="cpu-d3", preset="8vcpu-32gb")
    nodes = replace(spec.nodes, workers=(cpus,))
    assert deployed(replace(spec, nodes=nodes, jobs=())).of(RELEASE) == []


@pytest.mark.feature("S004-35", "S004-36")
def test_the_api_accepts_both(deployed: Deploy, load: Load) -> None:
    kind = ResourceType.of_token(Schema(Cache.from_environ().root), RELEASE)
    for each in deployed(without_drivers(load("h100-prod"))).of(RELEASE):
        assert kind.check(each.inputs)[1] == []
