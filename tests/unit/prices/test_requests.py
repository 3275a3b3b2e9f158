"""Each price that a stack is billed by is asked for once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from infra.operate.prices import wanted
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing


def test_every_price_of_the_stack_is_asked_for_once(stack: Callable[..., StackSpec]):
    asked = wanted(stack("l40s-dev"))
    skus = [sku for one in asked for sku in one.counts]
    assert set(skus) == {
        *("gpu-l40s-d/gpu", "gpu-l40s-d/vcpu", "gpu-l40s-d/ram", "cpu-d3/vcpu", "cpu-d3/ram"),
        *("disk/network-ssd", "disk/network-ssd-non-replicated", "filesystem/network-ssd"),
    }
    # Two presets of cpu-d3 are asked for, as their price need not be the same for every size.
    assert len(asked) == 6


def test_a_preemptible_node_is_asked_for_as_one(stack: Callable[..., StackSpec]):
    asked = wanted(stack("h100-prod", Billing.PREEMPTIBLE))
    gpu = next(one for one in asked if "gpu-h100-sxm/gpu/preemptible" in one.counts)
    assert gpu.fields["spec"]["preemptible"] == {"on_preemption": "STOP"}
    assert gpu.counts["gpu-h100-sxm/gpu/preemptible"] == 8


def test_reserved_nodes_are_left_to_the_contract(stack: Callable[..., StackSpec]):
    asked = wanted(stack("h100-prod", Billing.RESERVED))
    assert not any(sku.startswith("gpu-") for one in asked for sku in one.counts)
    assert any("disk/" in sku for one in asked for sku in one.counts)


def test_nodes_for_nfs_in_the_cluster_are_asked_for_too(stack: Callable[..., StackSpec]):
    spec = stack("l40s-dev")
    nfs = replace(spec.nodes.system, platform="cpu-e2")
    spec = replace(spec, nodes=replace(spec.nodes, nfs=nfs))
    assert any("cpu-e2/vcpu" in one.counts for one in wanted(spec))
