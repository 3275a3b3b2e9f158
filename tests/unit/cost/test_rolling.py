"""Which nodes a config key replaces is what the rendered node groups say, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.diff.rollout import Step, leaving, rolls
from cost.prices.book import layered
from cost.report.layout import usd_text
from cost.resources.estimate import estimate
from infra.render.names import filesystems
from infra.render.nodes import node_group_spec, roles
from stacks.changes import declared_values
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from stacks.spec.nodes import Billing, BootDiskSpec, NodeUserSpec, ReservationSpec, StrategySpec
from stacks.spec.storage import SubmountSpec

Change = Callable[[StackSpec], StackSpec]
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI someone"


def cluster(**values: Any) -> Change:
    return lambda spec: replace(spec, cluster=replace(spec.cluster, **values))


def nodes(**values: Any) -> Change:
    return lambda spec: replace(spec, nodes=replace(spec.nodes, **values))


def group(role: str, **values: Any) -> Change:
    return lambda spec: replace(
        spec, nodes=replace(spec.nodes, **{role: replace(getattr(spec.nodes, role), **values)})
    )


def worker(**values: Any) -> Change:
    def change(spec: StackSpec) -> StackSpec:
        first, *rest = spec.nodes.workers
        workers = (replace(first, **values), *rest)
        return replace(spec, nodes=replace(spec.nodes, workers=workers))

    return change


def storage(**values: Any) -> Change:
    return lambda spec: replace(spec, storage=replace(spec.storage, **values))


def more(spec: StackSpec) -> StackSpec:
    added = SubmountSpec(name="more", mount_path="/mnt/more", size_gib=64)
    return storage(submounts=(*spec.storage.submounts, added))(spec)


def fewer(spec: StackSpec) -> StackSpec:
    return storage(submounts=spec.storage.submounts[1:])(spec)


def grown(spec: StackSpec) -> StackSpec:
    first, *rest = spec.storage.submounts
    size = (first.size_gib or 0) + 93
    return storage(submounts=(replace(first, size_gib=size), *rest))(spec)


CHANGES: dict[str, Change] = {
    "nothing": lambda spec: spec,
    "kubernetes": cluster(kubernetes_version="1.34"),
    "system of the nodes": cluster(os="ubuntu22.04"),
    "drivers": cluster(drivers_preset="cuda12.8"),
    "where drivers come from": cluster(gpu_drivers=GpuDrivers.OPERATORS),
    "soperator": cluster(soperator_version="4.1.8"),
    "etcd": cluster(etcd_size=1),
    "users of the nodes": nodes(ssh_users=(NodeUserSpec(name="ops", ssh_public_keys=(KEY,)),)),
    "a preset of a service": group("login", preset="32vcpu-128gb"),
    "a boot disk of a service": group("system", boot_disk=BootDiskSpec(size_gib=320)),
    "labels": group("controller", labels={"team": "a"}),
    "public addresses": group("login", public_ip=True),
    "number of system nodes": group("system", min_nodes=4, max_nodes=9),
    "preemptible workers": worker(billing=Billing.PREEMPTIBLE),
    "reservation": worker(reservation=ReservationSpec(ids=("capacityblockgroup-1",))),
    "most pods": worker(max_pods=64),
    "driver options": worker(nvidia_config_lines=("options nvidia a=1",)),
    "another fabric": worker(infiniband_fabric="fabric-7"),
    "shared memory": worker(shared_memory_gib=32),
    "number of workers": worker(min_nodes=3, max_nodes=3),
    "the strategy": worker(strategy=StrategySpec(max_surge_nodes=1)),
    "one more filesystem": more,
    "one filesystem less": fewer,
    "a larger filesystem": grown,
    "another jail": lambda spec: storage(
        jail=replace(spec.storage.jail, size_gib=None, existing_id="computefilesystem-1")
    )(spec),
    "another spool": lambda spec: storage(
        controller_spool=replace(
            spec.storage.controller_spool, size_gib=None, existing_id="computefilesystem-2"
        )
    )(spec),
}


def rendered(spec: StackSpec) -> dict[str, Any]:
    """What of each group rolls its nodes when it changes, as the API's own words have it."""
    found: dict[str, Any] = {}
    ids = {
        tag: declared.existing_id or f"id of {tag}, {declared.type}"
        for tag, declared in filesystems(spec)
    }
    for role in roles(spec):
        fabric = None if role.worker is None else role.worker.infiniband_fabric
        whole = node_group_spec(
            spec, role, subnet_id="subnet", filesystem_ids=ids, gpu_cluster_id=fabric
        )
        template = {k: v for k, v in whole["template"].items() if k not in ("metadata", "taints")}
        found[role.name] = (whole["version"], template)
    return found


def rolled(before: StackSpec, after: StackSpec) -> dict[str, tuple[int, Step]]:
    """Stage and step by group."""
    total = estimate(after, layered(after))
    found = rolls(declared_values(before), declared_values(after), after, total)
    return {step.what.partition(":")[0]: (stage, step) for stage, step in found}


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("h100-prod")


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("stack", ["h100-prod", "l40s-dev", "h200-elastic"])
def test_a_key_rolls_exactly_the_groups_whose_nodes_it_changes(
    stack: str, name: str, public_key_file: Path
):
    before = load_stack(stack)
    after = CHANGES[name](before)
    old, new = rendered(before), rendered(after)
    changed = {group for group in old if old[group] != new.get(group)}
    assert rolled(before, after).keys() == changed


def test_a_group_names_the_keys_that_roll_it(spec: StackSpec):
    after = worker(max_pods=64)(cluster(os="ubuntu22.04")(spec))
    by_group = {group: step.causes for group, (_, step) in rolled(spec, after).items()}
    assert by_group["login"] == ("cluster.os: ubuntu24.04 -> ubuntu22.04",)
    assert by_group["worker"] == (
        "cluster.os: ubuntu24.04 -> ubuntu22.04",
        "nodes.workers[worker].max_pods: not set -> 64",
    )


def test_other_keys_of_a_user_of_the_nodes_are_other_nodes(spec: StackSpec):
    before, after = (
        nodes(ssh_users=(NodeUserSpec(name="ops", ssh_public_keys=(key,)),))(spec)
        for key in (KEY, f"{KEY}-else")
    )
    assert rolled(before, after).keys() == rendered(spec).keys()


def of_worker(spec: StackSpec, num: int, **strategy: Any) -> str:
    """What happens to so many workers whose nodes are made anew."""
    before = worker(min_nodes=num, max_nodes=num, strategy=StrategySpec(**strategy))(spec)
    ((_, step),) = rolled(before, worker(max_pods=64)(before)).values()
    assert step.slurm_nodes == tuple(f"worker-{at}" for at in range(num))
    return step.what


@pytest.mark.parametrize(
    ("num", "strategy", "at_once", "surge", "rounds"),
    [
        (2, {}, 1, 0, 2),
        (1, {}, 1, 0, 1),
        (5, {}, 2, 0, 3),
        (5, {"max_unavailable_nodes": 1}, 1, 0, 5),
        (5, {"max_unavailable_nodes": 0, "max_surge_nodes": 2}, 0, 2, 3),
        (5, {"max_unavailable_percent": 0, "max_surge_percent": 21}, 0, 2, 3),
        (130, {"max_unavailable_percent": 50}, 65, 0, 2),
        (130, {"max_unavailable_nodes": 10}, 20, 0, 10),
    ],
)
def test_nodes_away_and_beyond_follow_the_strategy_of_each_group_of_100(
    spec: StackSpec, num: int, strategy: Mapping[str, int], at_once: int, surge: int, rounds: int
):
    what = of_worker(spec, num, **strategy)
    assert f" made anew, {at_once} away at once, " in what
    assert (f", {surge} beyond the number for $" if surge else ", none beyond; ") in what
    assert f"; {rounds} round{'s' if rounds > 1 else ''} of " in what


def test_time_is_rounds_of_drain_and_new_nodes(spec: StackSpec):
    assert "; 2 rounds of 10 + 45 min: 1 h 50 min; " in of_worker(spec, 4)
    assert "; 2 rounds of 2 + 45 min: 1 h 34 min; " in of_worker(spec, 4, drain_timeout_s=90)
    endless = of_worker(spec, 4, drain_timeout_s=0)
    assert "; 2 rounds, each as long as pods take to leave (drain_timeout_s: 0); " in endless


def test_the_surge_costs_its_nodes_and_their_disks_for_as_long_as_it_lasts(spec: StackSpec):
    found = of_worker(spec, 2, max_unavailable_nodes=0, max_surge_nodes=1)
    total = estimate(spec, layered(spec))
    lines = [c for c in total.components if c.id.startswith("nodes.workers[worker]")]
    hourly = sum((line.monthly_usd_of_node for line in lines), Decimal(0)) / 730
    assert f", 1 beyond the number for {usd_text(hourly * 2 * 45 / 60)}; " in found


def test_services_roll_before_workers(spec: StackSpec):
    stages = {g: stage for g, (stage, _) in rolled(spec, cluster(os="ubuntu22.04")(spec)).items()}
    assert stages["system"] == min(stages.values())
    assert stages["worker"] == max(stages.values())


def test_a_smaller_set_loses_its_highest_numbers(public_key_file: Path):
    spec = load_stack("l40s-dev")
    first = spec.nodes.workers[0]
    after = worker(min_nodes=2, max_nodes=2)(spec)
    (found,) = leaving(declared_values(spec), after)
    assert found.slurm_nodes == tuple(f"{first.name}-{at}" for at in range(2, first.max_nodes))
    assert list(leaving(declared_values(after), spec)) == []


def test_a_pause_takes_every_worker_and_a_resume_none(spec: StackSpec):
    paused = nodes(paused=True)(spec)
    (found,) = leaving(declared_values(spec), paused)
    assert found.slurm_nodes == ("worker-0", "worker-1")
    assert list(leaving(declared_values(paused), spec)) == []


def test_a_set_that_is_no_longer_declared_leaves_whole(public_key_file: Path):
    spec = load_stack("l40s-dev")
    gone = spec.nodes.workers[-1]
    after = nodes(workers=spec.nodes.workers[:-1])(spec)
    (found,) = leaving(declared_values(spec), after)
    assert found.slurm_nodes == tuple(f"{gone.name}-{at}" for at in range(gone.max_nodes))
    assert found.causes == (f"nodes.workers[{gone.name}]: no longer declared",)
