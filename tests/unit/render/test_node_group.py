"""What each role of a stack becomes as an mk8s node group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.render import names
from infra.render.node_group import Role, labels, node_group_spec, roles
from stacks.load import load_stack, stack_names
from stacks.node_spec import Billing
from stacks.spec import StackSpec
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


@pytest.mark.parametrize("stack", stack_names())
def test_the_node_groups_of_every_shipped_stack_are_the_golden_ones(
    stack: str, golden: Callable[[str, str], None]
) -> None:
    spec = load_stack(stack)
    for role in roles(spec):
        fabric = role.worker.infiniband_fabric if role.worker else None
        group = rendered(spec, role.name, fabric)
        golden(f"node_groups/{stack}/{role.name}.json", as_json(group))


def test_only_groups_with_gpus_have_a_driver_a_taint_and_the_gpu_label(spec: StackSpec) -> None:
    for role in roles(spec):
        template = rendered(spec, role.name)["template"]
        has_gpus = role.name == "worker"
        assert ("gpu_settings" in template) is has_gpus
        assert ("taints" in template) is has_gpus
        assert (names.GPU_NODE_LABEL in template["metadata"]["labels"]) is has_gpus


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


def test_accounting_without_a_filesystem_keeps_the_jail_alone(spec: StackSpec) -> None:
    without = replace(spec, storage=replace(spec.storage, accounting=None))
    assert role_of(without, "accounting").tags == (names.JAIL,)


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
