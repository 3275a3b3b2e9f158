"""GPU clusters: one per declared fabric, none where no nodeset declares one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stacks.spec import StackSpec
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder

GPU_CLUSTER = "nebius:compute/v1:GpuCluster"
NODE_GROUP = "nebius:mk8s/v1:NodeGroup"


def joined(recorder: Recorder) -> dict[str, str]:
    """Node group -> id of the GPU cluster that it joins."""
    templates = {each.name: each.inputs["spec"]["template"] for each in recorder.of(NODE_GROUP)}
    return {
        name: template["gpu_cluster"]["id"]
        for name, template in templates.items()
        if "gpu_cluster" in template
    }


@pytest.mark.feature("S002-15")
@pytest.mark.parametrize("stack", ["l40s-dev", "local", "h200-elastic"])
def test_a_stack_without_a_fabric_has_no_gpu_cluster(deployed: Deploy, stack: str) -> None:
    """The API refuses to put L40S and single-GPU presets into one."""
    recorder = deployed(stack)
    assert recorder.of(GPU_CLUSTER) == []
    assert joined(recorder) == {}


@pytest.mark.feature("S001-04", "S002-08", "S002-15", "S003-60")
def test_h100_prod_has_one_on_its_fabric_and_only_the_workers_join_it(deployed: Deploy) -> None:
    recorder = deployed("h100-prod")
    cluster = recorder.one(GPU_CLUSTER)
    assert cluster.inputs["spec"] == {"infiniband_fabric": "fabric-6"}
    assert joined(recorder) == {"h100-prod-worker": "gpucluster-h100-prod-fabric-6"}


@pytest.mark.feature("S002-15")
def test_two_nodesets_on_one_fabric_share_its_cluster_and_a_third_has_its_own(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h100-prod")
    (worker,) = spec.nodes.workers
    workers = (
        worker,
        replace(worker, name="beside"),
        replace(worker, name="apart", infiniband_fabric="fabric-3"),
    )
    recorder = deployed(replace(spec, nodes=replace(spec.nodes, workers=workers)))
    fabrics = [each.inputs["spec"]["infiniband_fabric"] for each in recorder.of(GPU_CLUSTER)]
    assert sorted(fabrics) == ["fabric-3", "fabric-6"]
    assert joined(recorder) == {
        "h100-prod-worker": "gpucluster-h100-prod-fabric-6",
        "h100-prod-beside": "gpucluster-h100-prod-fabric-6",
        "h100-prod-apart": "gpucluster-h100-prod-fabric-3",
    }


def test_a_gpu_cluster_that_the_stack_brings_is_joined_and_none_is_made(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h100-prod")
    (worker,) = spec.nodes.workers
    mine = replace(worker, infiniband_fabric=None, gpu_cluster_id="computegpucluster-e00mine")
    recorder = deployed(replace(spec, nodes=replace(spec.nodes, workers=(mine,))))
    assert recorder.of(GPU_CLUSTER) == []
    assert joined(recorder) == {"h100-prod-worker": "computegpucluster-e00mine"}


def test_every_group_of_a_large_set_joins_the_one_cluster_of_its_fabric(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    spec = load("h100-prod")
    (worker,) = spec.nodes.workers
    large = replace(worker, min_nodes=250, max_nodes=250)
    recorder = deployed(replace(spec, nodes=replace(spec.nodes, workers=(large,))))
    assert len(recorder.of(GPU_CLUSTER)) == 1
    names = ("h100-prod-worker", "h100-prod-worker-1", "h100-prod-worker-2")
    assert joined(recorder) == dict.fromkeys(names, "gpucluster-h100-prod-fabric-6")
