"""The NFS server under the real engine: made, changed, replaced, destroyed and found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.engine.component_project import component_project, declare, ids_in, lose_the_state
from tests.engine.nebius_project import Emulator, Project, pulumi_binary
from tests.nightly import at_night

pytestmark = [
    pytest.mark.engine,
    pytest.mark.usefixtures("forks"),
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
_PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path

import pulumi

from infra.components.kube_cluster import Network
from infra.components.storage import NfsServer
from stacks.load import STACKS_DIR, load_config
from stacks.files import parse_yaml

config = parse_yaml((STACKS_DIR / "Pulumi.h100-prod.yaml").read_text())["config"]
declared = json.loads(Path(__file__).with_name("declared.json").read_text())
nfs = {
    "platform": "cpu-d3",
    "preset": "8vcpu-32gb",
    "boot_disk": {"size_gib": 64},
    "data_disks": {"size_gib": 93, "count": 2},
    "mount_path": "/mnt/nfs",
}
config["soperator-stack:nfs"] = {**nfs, **declared.get("nfs", {})}
config["soperator-stack:nebius"].update(project_id="project-e00p", **declared.get("nebius", {}))
config["soperator-stack:nodes"].update(declared.get("nodes", {}))
config["soperator-stack:storage"]["purge_on_destroy"] = declared.get("purge", False)
spec = load_config(config, "test")
server = NfsServer(spec, spec.nfs, Network(spec))
pulumi.export("address", server.address)
"""
DESTROY = ("destroy", "--yes", "--skip-preview")
USER = {"name": "ops", "ssh_public_keys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA== ops"]}


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    return component_project(tmp_path / "project", emulator, _PROGRAM)


def ids(emulator: Emulator, kind: str) -> set[str]:
    return ids_in(emulator, f"{kind}-")


def resource(project: Project, type_: str, name: str) -> dict[str, Any]:
    """A resource of the state by its type and name."""
    found = [
        each
        for each in json.loads(project.state())["checkpoint"]["latest"]["resources"]
        if each["type"] == f"nebius:{type_}" and each["urn"].endswith(f"::{name}")
    ]
    assert len(found) == 1, name
    return found[0]


def machine(project: Project) -> dict[str, Any]:
    return resource(project, "compute/v1:Instance", "test-nfs")


def test_a_second_up_changes_nothing_and_a_refresh_finds_nothing(project: Project) -> None:
    project.up()
    project.up("--expect-no-changes")
    project.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    assert project.outputs()["address"] == "127.0.0.1"


def test_data_disks_grow_in_place(project: Project, emulator: Emulator) -> None:
    project.up()
    before = ids(emulator, "computedisk") | ids(emulator, "computeinstance")
    declare(project, {"nfs": {"data_disks": {"size_gib": 186, "count": 2}}})
    project.up()
    assert ids(emulator, "computedisk") | ids(emulator, "computeinstance") == before
    assert '"size_gibibytes": 186' in project.state()


def test_a_data_disk_that_shrinks_is_refused_in_the_preview(project: Project) -> None:
    declare(project, {"nfs": {"data_disks": {"size_gib": 186, "count": 2}}})
    project.up()
    declare(project, {"nfs": {"data_disks": {"size_gib": 93, "count": 2}}})
    assert "cannot shrink" in project.run("preview", fails=True)


@pytest.mark.parametrize(
    "change", [at_night({"nfs": {"preset": "16vcpu-64gb"}}), {"nodes": {"ssh_users": [USER]}}]
)
def test_a_new_machine_takes_over_the_address_and_the_data(
    project: Project, emulator: Emulator, change: dict[str, Any]
) -> None:
    """What cloud-init does it does at the first start; hardware changes at a stop."""
    project.up()
    old, disks = machine(project), ids(emulator, "computedisk")
    allocations = ids(emulator, "vpcallocation")
    declare(project, change)
    project.up()
    new = machine(project)
    assert new["id"] != old["id"]
    assert ids(emulator, "computeinstance") == {new["id"]}
    assert ids(emulator, "computedisk") == disks
    assert ids(emulator, "vpcallocation") == allocations
    assert new["outputs"]["spec"]["secondary_disks"] == old["outputs"]["spec"]["secondary_disks"]
    project.up("--expect-no-changes")


def test_another_type_of_boot_disk_is_there_before_the_old_one_goes(
    project: Project, emulator: Emulator
) -> None:
    """While a machine has it, no disk can be deleted."""
    project.up()
    old, boot = machine(project), resource(project, "compute/v1:Disk", "test-nfs-boot-ssd")
    declare(project, {"nfs": {"boot_disk": {"size_gib": 93, "type": "network-ssd-io-m3"}}})
    project.up()
    assert machine(project)["id"] != old["id"]
    assert boot["id"] not in ids(emulator, "computedisk")
    assert len(ids(emulator, "computedisk")) == 3
    project.up("--expect-no-changes")


def test_destroy_keeps_the_data_disks_and_the_next_up_has_them_again(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    data = {resource(project, "compute/v1:Disk", f"test-nfs-data-{i}")["id"] for i in (0, 1)}
    assert data < ids(emulator, "computedisk")
    project.run(*DESTROY)
    assert ids(emulator, "computedisk") == data
    assert ids(emulator, "computeinstance") == set()
    project.up()
    assert {
        resource(project, "compute/v1:Disk", f"test-nfs-data-{i}")["id"] for i in (0, 1)
    } == data
    project.up("--expect-no-changes")


def test_purge_leaves_nothing(project: Project, emulator: Emulator) -> None:
    before = ids(emulator, "computedisk") | ids(emulator, "vpcallocation")
    declare(project, {"purge": True})
    project.up()
    project.run(*DESTROY)
    for kind in ("computedisk", "computeinstance"):
        assert ids(emulator, kind) == set()
    assert ids(emulator, "computedisk") | ids(emulator, "vpcallocation") == before


def test_a_lost_state_finds_machine_disks_and_address_again(
    project: Project, emulator: Emulator
) -> None:
    project.up()
    before = {kind: ids(emulator, kind) for kind in ("computedisk", "computeinstance")}
    lose_the_state(project)
    project.up()
    assert {kind: ids(emulator, kind) for kind in before} == before
    project.up("--expect-no-changes")


def test_the_blocks_of_a_subnet_that_exists_are_asked_and_it_is_left_alone(
    project: Project, emulator: Emulator
) -> None:
    subnets = ids(emulator, "vpcsubnet")
    existing = {"network_id": "vpcnetwork-e00pdefault", "subnet_id": "vpcsubnet-e00pdefault"}
    declare(project, {"nebius": existing})
    project.up()
    project.up("--expect-no-changes")
    project.run(*DESTROY)
    assert ids(emulator, "vpcsubnet") == subnets
    assert "vpcsubnet-e00pdefault" in subnets


def test_what_cloud_init_gets_is_not_in_the_state_in_the_clear(project: Project) -> None:
    declare(project, {"nodes": {"ssh_users": [USER]}})
    project.up()
    assert "ops" not in machine(project)["inputs"]["spec"]["cloud_init_user_data"]
