"""What each role of a stack becomes as an mk8s node group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.render import names
from infra.render.nodes import Role, labels, node_group_spec, roles
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import GpuDrivers
from stacks.spec.nodes import (
    Billing,
    LocalNvmeSpec,
    NodeUserSpec,
    Reservation,
    ReservationSpec,
    StrategySpec,
)
from tests import SHIPPED
from tests.unit.render.conftest import as_json

pytestmark = pytest.mark.usefixtures("public_key_file")


class Ids(dict[str, str]):
    """Filesystem ids that name their tag."""

    def __missing__(self, tag: str) -> str:
        return f"filesystem-{tag}"


def role_of(spec: StackSpec, name: str) -> Role:
    return next(role for role in roles(spec) if role.name == name)


def rendered(spec: StackSpec, name: str, gpu_cluster_id: str | None = None) -> dict[str, Any]:
    role = role_of(spec, name)
    return node_group_spec(
        spec, role, subnet_id="subnet", filesystem_ids=Ids(), gpu_cluster_id=gpu_cluster_id
    )


def tags(group: dict[str, Any]) -> list[str]:
    return [each["mount_tag"] for each in group["template"]["filesystems"]]


def test_a_filesystem_without_an_id_is_no_filesystem_called_by_its_tag() -> None:
    """The API would be asked for `<jail>`."""
    spec = load_stack("h100-prod")
    disks = rendered(spec, "login")["template"]["filesystems"]
    assert [each["existing_filesystem"]["id"] for each in disks] == [
        f"filesystem-{each['mount_tag']}" for each in disks
    ]
    with pytest.raises(KeyError, match="jail"):
        node_group_spec(spec, role_of(spec, "login"), subnet_id="subnet", filesystem_ids={})


@pytest.mark.feature(
    "S000-70",
    "S000-76",
    "S000-78",
    "S000-79",
    "S000-80",
    "S000-123",
    "S001-02",
    "S002-07",
    "S002-11",
    "S002-15",
    "S002-16",
    "S003-14",
    "S003-61",
    "S003-62",
    "S003-63",
    "S003-64",
)
@pytest.mark.parametrize("stack", SHIPPED)
def test_the_node_groups_of_every_shipped_stack_are_the_golden_ones(
    stack: str, golden: Callable[[str, str], None]
) -> None:
    spec = load_stack(stack)
    for role in roles(spec):
        fabric = role.worker.infiniband_fabric if role.worker else None
        group = rendered(spec, role.name, fabric)
        golden(f"node_groups/{stack}/{role.name}.json", as_json(group))


def test_only_groups_with_gpus_have_a_driver_and_the_gpu_label(spec: StackSpec) -> None:
    for role in roles(spec):
        template = rendered(spec, role.name)["template"]
        has_gpus = role.name == "worker"
        assert ("gpu_settings" in template) is has_gpus
        assert (names.GPU_NODE_LABEL in template["metadata"]["labels"]) is has_gpus


def test_every_role_but_system_has_its_nodes_for_itself_and_gpus_are_guarded(
    spec: StackSpec,
) -> None:
    """System pods of everybody land on whatever node has no taint: it must be a system node."""
    own = {
        role.name: [
            taint["key"] for taint in rendered(spec, role.name)["template"].get("taints", [])
        ]
        for role in roles(spec)
    }
    assert own == {
        "system": [],
        "controller": [names.NODESET_LABEL],
        "login": [names.NODESET_LABEL],
        "accounting": [names.NODESET_LABEL],
        "worker": [names.GPU_RESOURCE],
    }


def test_the_balancer_of_the_login_service_finds_login_nodes_only(spec: StackSpec) -> None:
    for role in roles(spec):
        assert (names.NO_BALANCER_LABEL in labels(role)) is (role.name != "login")


def test_a_worker_carries_the_label_that_its_nodeset_selects(spec: StackSpec) -> None:
    found = labels(role_of(spec, "worker"))
    assert found[names.NODESET_LABEL] == "worker"
    assert found[names.NODESET_NAME_LABEL] == "worker"
    assert names.NODESET_NAME_LABEL not in labels(role_of(spec, "system"))


def test_a_worker_called_otherwise_keeps_the_role_worker(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    other = replace(spec, nodes=replace(spec.nodes, workers=(replace(worker, name="cheap"),)))
    found = labels(role_of(other, "cheap"))
    assert (found[names.NODESET_LABEL], found[names.NODESET_NAME_LABEL]) == ("worker", "cheap")


def test_workers_and_login_see_the_jail_and_every_submount(spec: StackSpec) -> None:
    """A job that finds its data on the login node must find it on a worker too."""
    expected = [names.JAIL, *(names.submount_tag(each.name) for each in spec.storage.submounts)]
    assert tags(rendered(spec, "worker")) == expected
    assert tags(rendered(spec, "login")) == expected


def test_only_the_controller_has_the_spool_and_only_accounting_its_own_disk(
    spec: StackSpec,
) -> None:
    have = {role.name: tags(rendered(spec, role.name)) for role in roles(spec)}
    assert [name for name, found in have.items() if names.CONTROLLER_SPOOL in found] == [
        "controller"
    ]
    assert [name for name, found in have.items() if names.ACCOUNTING in found] == ["accounting"]


def test_every_group_has_the_jail_that_its_label_promises(spec: StackSpec) -> None:
    for role in roles(spec):
        assert labels(role)[names.JAIL_LABEL] == "true"
        assert names.JAIL in role.tags


def test_a_stack_without_an_accounting_group_has_none(bare: StackSpec) -> None:
    assert [role.name for role in roles(bare)] == ["system", "controller", "login", "worker"]


def test_every_node_with_the_jail_has_every_submount(spec: StackSpec) -> None:
    """DaemonSets mount each submount wherever the jail label is; one that fails blocks the node."""
    expected = {names.JAIL, *(names.submount_tag(each.name) for each in spec.storage.submounts)}
    for role in roles(spec):
        assert expected <= set(role.tags), role.name


def test_accounting_without_a_filesystem_keeps_what_every_node_has(spec: StackSpec) -> None:
    without = replace(spec, storage=replace(spec.storage, accounting=None))
    assert role_of(without, "accounting").tags == role_of(without, "system").tags


@pytest.mark.feature("S003-41")
def test_equal_bounds_are_a_fixed_count_and_others_autoscale(spec: StackSpec) -> None:
    fixed, scaling = rendered(spec, "worker"), rendered(spec, "system")
    assert fixed["fixed_node_count"] == 2
    assert "autoscaling" not in fixed
    assert scaling["autoscaling"] == {"min_node_count": 1, "max_node_count": 3}
    assert "fixed_node_count" not in scaling


def test_a_group_joins_a_gpu_cluster_only_when_it_is_given_one(spec: StackSpec) -> None:
    assert "gpu_cluster" not in rendered(spec, "worker")["template"]
    assert rendered(spec, "worker", "cluster-1")["template"]["gpu_cluster"] == {"id": "cluster-1"}


def test_only_preemptible_billing_makes_preemptible_nodes(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    cheap = replace(worker, billing=Billing.PREEMPTIBLE)
    other = replace(spec, nodes=replace(spec.nodes, workers=(cheap,)))
    assert "preemptible" not in rendered(spec, "worker")["template"]
    assert rendered(other, "worker")["template"]["preemptible"] == {}


def test_an_id_that_is_not_known_yet_is_passed_through_untouched(spec: StackSpec) -> None:
    unknown = object()
    role = role_of(spec, "controller")
    ids = dict.fromkeys(role.tags, unknown)
    group = node_group_spec(spec, role, subnet_id=unknown, filesystem_ids=ids)
    assert group["template"]["network_interfaces"] == [{"subnet_id": unknown}]
    assert group["template"]["filesystems"][0]["existing_filesystem"]["id"] is unknown


def test_a_taint_is_not_shared_between_groups(spec: StackSpec) -> None:
    """With one dict in two specs a change of the one would move the other."""
    first, second = (rendered(spec, "worker")["template"]["taints"][0] for _ in range(2))
    assert first == second
    assert first is not second


def with_worker(spec: StackSpec, **changes: Any) -> StackSpec:
    """The stack with its only nodeset changed."""
    (worker,) = spec.nodes.workers
    return replace(spec, nodes=replace(spec.nodes, workers=(replace(worker, **changes),)))


def sizes(spec: StackSpec) -> dict[str, Any]:
    """Worker group -> its size as the API gets it."""
    found = {}
    for role in roles(spec):
        if role.worker is not None:
            group = rendered(spec, role.name)
            scaling = group.get("autoscaling")
            found[role.name] = (
                group["fixed_node_count"]
                if scaling is None
                else (scaling["min_node_count"], scaling["max_node_count"])
            )
    return found


def test_a_hundred_nodes_are_one_group_under_the_bare_name(spec: StackSpec) -> None:
    assert sizes(with_worker(spec, min_nodes=100, max_nodes=100)) == {"worker": 100}


def test_the_group_that_a_set_has_stays_when_it_grows_over_a_hundred(spec: StackSpec) -> None:
    """A new name would be a new group: a hundred nodes would go to get one more."""
    assert sizes(with_worker(spec, min_nodes=101, max_nodes=101)) == {"worker": 100, "worker-1": 1}


def test_groups_of_a_large_set_are_full_but_for_the_last(spec: StackSpec) -> None:
    found = sizes(with_worker(spec, min_nodes=250, max_nodes=250))
    assert found == {"worker": 100, "worker-1": 100, "worker-2": 50}


def test_the_minimum_fills_the_first_groups(spec: StackSpec) -> None:
    found = sizes(with_worker(spec, min_nodes=130, max_nodes=250))
    assert found == {"worker": 100, "worker-1": (30, 100), "worker-2": (0, 50)}


def test_groups_made_empty_never_wait_for_capacity(spec: StackSpec) -> None:
    found = sizes(with_worker(spec, min_nodes=120, max_nodes=120, created_nodes=0))
    assert found == {"worker": (0, 100), "worker-1": (0, 20)}


def test_groups_made_with_some_nodes_fill_the_first(spec: StackSpec) -> None:
    found = sizes(with_worker(spec, min_nodes=120, max_nodes=120, created_nodes=110))
    assert found == {"worker": 100, "worker-1": (10, 20)}


def test_groups_of_a_set_share_the_label_that_its_nodeset_selects(spec: StackSpec) -> None:
    large = with_worker(spec, min_nodes=101, max_nodes=101)
    found = [labels(role)[names.NODESET_NAME_LABEL] for role in roles(large) if role.worker]
    assert found == ["worker", "worker"]


def test_a_paused_stack_keeps_its_groups_without_nodes(spec: StackSpec) -> None:
    large = with_worker(spec, min_nodes=101, max_nodes=150, created_nodes=3)
    paused = replace(large, nodes=replace(large.nodes, paused=True))
    assert sizes(paused) == {"worker": 0, "worker-1": 0}
    assert rendered(paused, "login") == rendered(large, "login")


@pytest.mark.feature("S003-41")
def test_workers_are_replaced_half_at_a_time_and_repaired_by_soperator(spec: StackSpec) -> None:
    group = rendered(spec, "worker")
    assert group["strategy"] == {"max_unavailable": {"percent": 50}, "max_surge": {"percent": 0}}
    conditions = {each["type"]: each for each in group["auto_repair"]["conditions"]}
    assert conditions["NodeReady"]["disabled"] is True
    assert conditions["NebiusBootDiskIOError"]["disabled"] is True
    assert conditions["HardwareIssuesSuspected"]["timeout"] == "1s"
    assert "strategy" not in rendered(spec, "system")
    assert "auto_repair" not in rendered(spec, "system")


def test_a_declared_strategy_replaces_the_recipes(spec: StackSpec) -> None:
    strategy = StrategySpec(max_unavailable_nodes=1, max_surge_percent=10, drain_timeout_s=0)
    group = rendered(with_worker(spec, strategy=strategy), "worker")
    assert group["strategy"] == {
        "max_unavailable": {"count": 1},
        "max_surge": {"percent": 10},
        "drain_timeout": "0s",
    }


def test_only_a_declared_reservation_has_a_policy(spec: StackSpec) -> None:
    wanted = ReservationSpec(policy=Reservation.STRICT, ids=("capacityblockgroup-1",))
    template = rendered(with_worker(spec, reservation=wanted), "worker")["template"]
    assert template["reservation_policy"] == {
        "policy": "strict",
        "reservation_ids": ["capacityblockgroup-1"],
    }
    assert "reservation_policy" not in rendered(spec, "worker")["template"]


def test_nodes_have_public_addresses_only_when_asked(spec: StackSpec) -> None:
    login = replace(spec.nodes.login, public_ip=True)
    other = replace(spec, nodes=replace(spec.nodes, login=login))
    (interface,) = rendered(other, "login")["template"]["network_interfaces"]
    assert interface == {"subnet_id": "subnet", "public_ip_address": {}}
    for role in roles(spec):
        (interface,) = rendered(spec, role.name)["template"]["network_interfaces"]
        assert "public_ip_address" not in interface


@pytest.mark.feature("S003-60")
def test_a_declared_label_is_added_and_never_replaces_one_of_the_charts(spec: StackSpec) -> None:
    mine = {"team": "ml", names.NODESET_LABEL: "mine"}
    found = labels(role_of(with_worker(spec, labels=mine), "worker"))
    assert found["team"] == "ml"
    assert found[names.NODESET_LABEL] == "worker"


def test_local_drives_are_passed_through_untouched_by_kubernetes(spec: StackSpec) -> None:
    template = rendered(with_worker(spec, local_nvme=LocalNvmeSpec()), "worker")["template"]
    assert template["local_disks"] == {
        "passthrough_group": {"requested": True},
        "config": {"none": True},
    }
    assert "mdadm --create" in template["cloud_init_user_data"]
    assert "local_disks" not in rendered(spec, "worker")["template"]


def test_nodes_have_user_data_only_when_something_needs_it(spec: StackSpec) -> None:
    for role in roles(spec):
        assert "cloud_init_user_data" not in rendered(spec, role.name)["template"]
    user = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))
    entered = replace(spec, nodes=replace(spec.nodes, ssh_users=(user,)))
    for role in roles(entered):
        assert "ops" in rendered(entered, role.name)["template"]["cloud_init_user_data"]


def test_operators_bring_the_drivers_where_the_image_does_not(spec: StackSpec) -> None:
    cluster = replace(spec.cluster, gpu_drivers=GpuDrivers.OPERATORS)
    template = rendered(replace(spec, cluster=cluster), "worker")["template"]
    assert "gpu_settings" not in template
    assert rendered(spec, "worker")["template"]["gpu_settings"] == {"drivers_preset": "cuda13.0"}


def test_an_nfs_group_has_no_filesystem_and_no_jail_label(spec: StackSpec) -> None:
    other = replace(spec, nodes=replace(spec.nodes, nfs=spec.nodes.controller))
    template = rendered(other, "nfs")["template"]
    assert "filesystems" not in template
    assert names.JAIL_LABEL not in template["metadata"]["labels"]
    assert template["taints"][0]["value"] == "nfs"
    assert "nfs" not in [role.name for role in roles(spec)]


def test_the_api_accepts_every_kind_of_group(spec: StackSpec, node_group_type: Any) -> None:
    """Nebius's own rules, from the descriptors of the SDK."""
    rich = with_worker(
        spec,
        min_nodes=130,
        max_nodes=150,
        created_nodes=0,
        max_pods=32,
        labels={"team": "ml"},
        public_ip=True,
        local_nvme=LocalNvmeSpec(),
        nvidia_config_lines=("options nvidia NVreg_RestrictProfilingToAdminUsers=0",),
        reservation=ReservationSpec(policy=Reservation.AUTO, ids=("capacityblockgroup-1",)),
        strategy=StrategySpec(max_unavailable_nodes=1, drain_timeout_s=600),
    )
    paused = replace(rich, nodes=replace(rich.nodes, paused=True, nfs=rich.nodes.controller))
    for stack in (rich, paused):
        for role in roles(stack):
            metadata = {"parent_id": "mk8scluster-e00c", "name": role.name}
            group = rendered(stack, role.name, "computegpucluster-e00g" if role.worker else None)
            _, problems = node_group_type.check({"metadata": metadata, "spec": group})
            assert problems == [], role.name
