"""The steps of a change: their order, what they drain, the way back, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cost.bill.bill import bill
from cost.diff.diff import cost_outputs
from cost.diff.table import Change, change
from cost.prices.book import layered
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import StrategySpec

Changed = Callable[[StackSpec], Change]


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("h100-prod")


@pytest.fixture
def to(spec: StackSpec) -> Changed:
    """The change from `spec`, as it was deployed, to another declaration."""
    outputs = json.loads(json.dumps({"cost": cost_outputs(bill(spec, layered(spec)))}))
    return lambda after: change(bill(after, layered(after)), outputs)


def cluster(spec: StackSpec, **values: Any) -> StackSpec:
    return replace(spec, cluster=replace(spec.cluster, **values))


def worker(spec: StackSpec, **values: Any) -> StackSpec:
    first = replace(spec.nodes.workers[0], **values)
    return replace(spec, nodes=replace(spec.nodes, workers=(first,)))


def text_of(found: Change) -> list[str]:
    return found.rollout.render().splitlines()


def test_an_unchanged_stack_disturbs_nobody(spec: StackSpec, to: Changed):
    found = to(spec)
    assert found.rollout.steps == ()
    assert found.render() == "No change in cost.\n"


def test_a_kubernetes_upgrade_goes_control_plane_operators_head_workers(
    spec: StackSpec, to: Changed
):
    found = to(cluster(spec, kubernetes_version="1.34"))
    steps = [line.split(":")[0].split(". ")[1] for line in text_of(found) if ". " in line[:5]]
    assert steps == ["control plane", "system", "controller", "login", "accounting", "worker"]
    assert found.rollout.is_staged
    assert found.rollout.slurm_nodes == ("worker-0", "worker-1")
    assert found.errors == ()
    assert {step.way_back for step in found.rollout.steps} == {
        "none: a control plane never goes back to an older version",
        "none: nodes follow the control plane",
    }


def test_a_driver_change_drains_the_gpu_nodes_with_time_and_dollars(spec: StackSpec, to: Changed):
    ready = worker(spec, strategy=StrategySpec(max_unavailable_nodes=0, max_surge_nodes=1))
    found = to(cluster(ready, drivers_preset="cuda12.8"))
    assert text_of(found)[1] == (
        "  1. worker: 2 nodes made anew, 0 away at once, 1 beyond the number for $54.07; "
        "2 rounds of 10 + 45 min: 1 h 50 min; jobs on them end"
    )
    assert not found.rollout.is_staged
    assert found.rollout.steps[0].way_back == "set the keys back: the nodes are made anew once more"


def test_custom_resources_of_soperator_come_before_its_charts(spec: StackSpec, to: Changed):
    found = to(cluster(spec, soperator_version="4.1.13"))
    crds, charts = found.rollout.steps
    assert crds.what.startswith("custom resources of Soperator: 4.1.7 -> 4.1.13, before any chart")
    assert charts.what.startswith("Soperator's charts: 4.1.7 -> 4.1.13; every pod of Slurm")
    assert (
        charts.way_back == "set cluster.soperator_version back to 4.1.7: Slurm is 25.11.3 in both"
    )
    assert charts.slurm_nodes == ("worker-0", "worker-1")


def test_another_slurm_has_no_way_back(spec: StackSpec, to: Changed):
    charts = to(cluster(spec, soperator_version="5.0.0")).rollout.steps[-1]
    assert charts.way_back.startswith("none: Slurm converts its state and the accounting database")


def test_a_smaller_set_names_who_leaves(spec: StackSpec, to: Changed):
    found = to(worker(spec, min_nodes=1, max_nodes=1))
    (step,) = found.rollout.steps
    assert step.what == "worker: worker-1, the one with the highest number, leaves; jobs on it end"
    assert step.slurm_nodes == ("worker-1",)


def test_steps_keep_their_order_however_the_engine_hands_its_outputs_over(spec: StackSpec):
    """Preview and `up` are two processes, and its mappings have another order in each."""
    first = spec.nodes.workers[0]
    sets = (replace(first, name="a"), replace(first, name="b"), replace(first, name="c"))
    two = replace(spec, nodes=replace(spec.nodes, workers=sets))
    outputs = json.loads(json.dumps({"cost": cost_outputs(bill(two, layered(two)))}))
    values = outputs["cost"]["snapshot"]["values"]
    outputs["cost"]["snapshot"]["values"] = dict(reversed(list(values.items())))
    after = bill(replace(two, nodes=replace(two.nodes, paused=True)), layered(two))
    steps = change(after, outputs).rollout.steps
    assert [step.what.partition(":")[0] for step in steps if "leave" in step.what] == list("abc")


def test_a_larger_set_disturbs_nobody(spec: StackSpec, to: Changed):
    assert to(worker(spec, min_nodes=3, max_nodes=3)).rollout.steps == ()


def test_more_memory_for_pods_restarts_them_on_the_same_nodes(spec: StackSpec, to: Changed):
    (step,) = to(worker(spec, shared_memory_gib=32)).rollout.steps
    assert step.what == "pods of worker: started anew; jobs on them end"
    assert step.causes == ("nodes.workers[worker].shared_memory_gib: 512 -> 32",)


def test_a_filesystem_grows_in_place_and_a_smaller_one_is_refused(spec: StackSpec, to: Changed):
    jail = spec.storage.jail
    size = jail.size_gib or 0

    def sized(gib: int) -> StackSpec:
        return replace(spec, storage=replace(spec.storage, jail=replace(jail, size_gib=gib)))

    (step,) = to(sized(size + 1)).rollout.steps
    assert step.what == (
        f"filesystem storage.jail: {size} -> {size + 1} GiB in place; nothing drains"
    )
    assert step.way_back == "none: a filesystem never shrinks"
    (error,) = to(sized(size - 1)).errors
    assert "no filesystem shrinks" in error.message


def test_another_subnet_ends_everything(spec: StackSpec, to: Changed):
    moved = replace(spec, nebius=replace(spec.nebius, network_id="vpcnetwork-1", subnet_id="s-1"))
    first = to(moved).rollout.steps[0]
    assert first.what == "kube cluster: made anew, with every node group; all jobs end"
    assert first.causes == (
        "nebius.network_id: not set -> vpcnetwork-1",
        "nebius.subnet_id: not set -> s-1",
    )


def test_a_deployment_that_remembers_no_versions_is_told_nothing(spec: StackSpec):
    outputs = json.loads(json.dumps({"cost": cost_outputs(bill(spec, layered(spec)))}))
    values = outputs["cost"]["snapshot"]["values"]
    for key in [key for key in values if key.startswith("cluster.")]:
        del values[key]
    after = cluster(spec, kubernetes_version="1.31")
    found = change(bill(after, layered(after)), outputs)
    assert found.rollout.steps == ()
    assert found.problems == ()
