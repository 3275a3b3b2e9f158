"""Node groups belong to the kube cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import NodeUserSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import declare
from tests.components.texts import open_texts

NODE_GROUP = "nebius:mk8s/v1:NodeGroup"
IN_A_GROUP = ("nebius:iam/v1:AccessPermit", "nebius:iam/v1:GroupMembership")


@pytest.mark.feature("S002-07")
@pytest.mark.parametrize("stack", SHIPPED)
def test_the_parent_of_a_node_group_is_the_cluster_and_never_the_project(
    deployed: Deploy, stack: str, public_key_file: Path
) -> None:
    """The API takes a project's id as a parent of nearly everything else."""
    groups = deployed(stack).of(NODE_GROUP)
    assert len(groups) == 4 + len(load_stack(stack).nodes.workers)
    for group in groups:
        assert group.inputs["metadata"]["parent_id"] == f"cluster-{stack}-kube"


@pytest.mark.feature("S000-123")
@pytest.mark.parametrize("stack", SHIPPED)
def test_each_role_is_made_with_its_own_machine_and_disk(
    deployed: Deploy, stack: str, public_key_file: Path
) -> None:
    nodes = load_stack(stack).nodes
    declared = {role: getattr(nodes, role) for role in ("system", "controller", "login")}
    declared |= {"accounting": nodes.accounting, **{each.name: each for each in nodes.workers}}
    made = {each.name: each.inputs["spec"]["template"] for each in deployed(stack).of(NODE_GROUP)}
    assert {name: (template["resources"], template["boot_disk"]["size_gibibytes"])
            for name, template in made.items()} == {
        f"{stack}-{name}": (
            {"platform": group.platform, "preset": group.preset}, group.boot_disk.size_gib,
        )
        for name, group in declared.items()
    }  # fmt: skip


@pytest.mark.parametrize("stack", SHIPPED)
def test_what_is_not_a_node_group_belongs_to_the_project(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    project = {"local": "project-e00p"}.get(stack, "project-e00replaceme")
    for each in recorder.registered:
        if each.type.startswith("nebius:") and each.type not in (NODE_GROUP, *IN_A_GROUP):
            assert each.inputs["metadata"]["parent_id"] == project, each.name


@pytest.mark.parametrize("stack", SHIPPED)
def test_every_attached_filesystem_is_one_of_the_stacks_own(deployed: Deploy, stack: str) -> None:
    recorder = deployed(stack)
    made = {
        f"filesystem-{each.name}": each.name.removeprefix(f"{stack}-")
        for each in recorder.of("nebius:compute/v1:Filesystem")
    }
    for group in recorder.of(NODE_GROUP):
        for each in group.inputs["spec"]["template"]["filesystems"]:
            assert made[each["existing_filesystem"]["id"]] == each["mount_tag"]


def test_operators_are_installed_after_the_nodes_that_run_them(deployed: Deploy) -> None:
    """Helm waits for pods: without nodes it would wait in vain."""
    recorder = deployed("local")
    groups = {each.urn for each in recorder.of(NODE_GROUP)}
    teardown = recorder.one("soperator:kube:Teardown")
    assert groups <= set(teardown.depends_on)
    assert teardown.urn in recorder.one("soperator:infra:Soperator").depends_on


def test_groups_wait_for_each_other_only_where_nodes_are_replaced(
    load: Callable[[str], StackSpec], deployed: Deploy, tmp_path: Path
) -> None:
    """A creation in stages would take as long as its stages together."""
    staged = declare(load("l40s-dev"), tmp_path, rolls_in_stages=True)
    by_name = {each.name.removeprefix("l40s-dev-"): each for each in staged.of(NODE_GROUP)}
    head = {by_name[name].urn for name in ("controller", "login", "accounting")}
    assert by_name["system"].urn in by_name["login"].depends_on
    assert head.isdisjoint(by_name["controller"].depends_on)
    workers = [by_name[each.name] for each in load("l40s-dev").nodes.workers]
    assert all(head <= set(each.depends_on) for each in workers)
    groups = {each.urn for each in deployed("l40s-dev").of(NODE_GROUP)}
    for each in deployed("l40s-dev").of(NODE_GROUP):
        assert groups.isdisjoint(each.depends_on)


def test_user_data_of_nodes_is_sent_as_a_secret(
    deployed: Deploy, load: Callable[[str], StackSpec]
) -> None:
    """The API calls it sensitive: who may enter is in it."""
    spec = load("local")
    user = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))
    recorder = deployed(replace(spec, nodes=replace(spec.nodes, ssh_users=(user,))))
    for group in recorder.of(NODE_GROUP):
        assert "ssh-ed25519 AAAA ops" in group.inputs["spec"]["template"]["cloud_init_user_data"]
        assert not any("ssh-ed25519 AAAA ops" in text for text in open_texts(group.sent))
