"""The NFS server: nothing where none is declared, else a machine whose data outlives it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from infra.providers.nebius.adoption import TYPES
from stacks.spec import StackSpec
from stacks.spec.nodes import BootDiskSpec, DataDisksSpec, NfsSpec, NodeUserSpec
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder
from tests.components.test_teardown import outlived_by
from tests.components.texts import open_texts

INSTANCE = "nebius:compute/v1:Instance"
DISK = "nebius:compute/v1:Disk"
RELEASE = "kubernetes:helm.sh/v3:Release"
NFS = NfsSpec(
    platform="cpu-d3",
    preset="16vcpu-64gb",
    boot_disk=BootDiskSpec(size_gib=64),
    data_disks=DataDisksSpec(size_gib=930, count=2),
    mount_path="/srv/shared",
)
Load = Callable[[str], StackSpec]


@pytest.fixture
def served(deployed: Deploy, load: Load) -> Recorder:
    return deployed(replace(load("h100-prod"), nfs=NFS))


def spec_of(recorder: Recorder, type_: str, name: str) -> dict[str, Any]:
    return recorder.one(type_, name).inputs["spec"]


@pytest.mark.parametrize("stack", ["h100-prod", "local"])
def test_a_stack_that_declares_no_server_has_no_machine_and_no_disk(
    deployed: Deploy, stack: str
) -> None:
    assert deployed(stack).of(INSTANCE) == []
    assert deployed(stack).of(DISK) == []


def test_the_machine_has_its_own_address_its_boot_disk_and_every_data_disk(
    served: Recorder,
) -> None:
    spec = spec_of(served, INSTANCE, "h100-prod-nfs")
    assert spec["resources"] == {"platform": "cpu-d3", "preset": "16vcpu-64gb"}
    (interface,) = spec["network_interfaces"]
    assert interface["ip_address"] == {"allocation_id": "allocation-h100-prod-nfs-address"}
    assert "public_ip_address" not in interface
    assert spec["boot_disk"]["existing_disk"] == {"id": "disk-h100-prod-nfs-boot-ssd"}
    data = [(disk["device_id"], disk["existing_disk"]["id"]) for disk in spec["secondary_disks"]]
    assert data == [
        ("data-0", "disk-h100-prod-nfs-data-0"),
        ("data-1", "disk-h100-prod-nfs-data-1"),
    ]
    assert spec_of(served, DISK, "h100-prod-nfs-data-1") == {
        "type": "network-ssd-io-m3",
        "size_gibibytes": 930,
    }
    assert spec_of(served, DISK, "h100-prod-nfs-boot-ssd")["source_image_family"] == {
        "image_family": "ubuntu22.04-driverless"
    }


def test_a_public_address_comes_only_when_asked(deployed: Deploy, load: Load) -> None:
    public = deployed(replace(load("h100-prod"), nfs=replace(NFS, public_ip=True)))
    (interface,) = spec_of(public, INSTANCE, "h100-prod-nfs")["network_interfaces"]
    assert interface["public_ip_address"] == {}


def test_everything_hangs_under_the_machine_of_the_server(served: Recorder) -> None:
    chain = "soperator:infra:Stack$soperator:infra:NfsServer$soperator:infra:Instance"
    for type_ in (INSTANCE, DISK):
        for each in served.of(type_):
            assert each.urn.split("::")[2] == f"{chain}${type_}"


def test_data_disks_outlive_a_destroy_and_the_machine_and_its_boot_disk_do_not(
    served: Recorder, deployed: Deploy, load: Load
) -> None:
    kept = {
        each.name
        for type_ in (INSTANCE, DISK)
        for each in served.of(type_)
        if each.retain_on_delete
    }
    assert kept == {"h100-prod-nfs-data-0", "h100-prod-nfs-data-1"}
    spec = load("h100-prod")
    purged = deployed(replace(spec, nfs=NFS, storage=replace(spec.storage, purge_on_destroy=True)))
    assert [each.name for each in purged.of(DISK) if each.retain_on_delete] == []


def test_everything_of_the_server_is_looked_for_among_orphans() -> None:
    """Users before what they use: the machine before its disks and its address."""
    order = [TYPES.index(type_) for type_ in (INSTANCE, DISK, "nebius:vpc/v1:Allocation")]
    assert order == sorted(order)


def test_the_server_outlives_every_pod_that_mounts_it(served: Recorder) -> None:
    """Without its server a pod cannot let go of its files, and its node hangs."""
    machine = served.one(INSTANCE).urn
    for release in ("slurm-cluster", "nodesets"):
        assert machine in outlived_by(served, served.one(RELEASE, release))


def test_login_and_workers_mount_the_export_of_the_address(served: Recorder) -> None:
    volume = {"nfs": {"server": "203.0.113.7", "path": "/srv/nfs"}}
    cluster = served.one(RELEASE, "slurm-cluster").inputs["values"]
    assert {"name": "nfs", **volume} in cluster["volumeSources"]
    mount = {"name": "nfs", "mountPath": "/srv/shared"}
    submounts = cluster["slurmNodes"]["login"]["volumes"]["jailSubMounts"]
    assert {**mount, "volumeSourceName": "nfs"} in submounts
    for nodeset in served.one(RELEASE, "nodesets").inputs["values"]["nodesets"]:
        own = nodeset["slurmd"]["volumes"]["jailSubMounts"]
        assert {**mount, "volumeSource": volume} in own


def test_user_data_exports_to_the_subnet_and_is_hidden(served: Recorder) -> None:
    data = spec_of(served, INSTANCE, "h100-prod-nfs")["cloud_init_user_data"]
    assert "/srv/nfs 10.0.0.0/16(rw,async,no_subtree_check,no_root_squash,mp)" in data
    assert not [text for text in open_texts(served.one(INSTANCE).sent) if "/srv/nfs" in text]


def test_the_blocks_of_a_subnet_that_exists_are_read_and_the_subnet_is_not_made(
    deployed: Deploy, load: Load
) -> None:
    spec = load("h100-prod")
    nebius = replace(spec.nebius, network_id="vpcnetwork-e00x", subnet_id="vpcsubnet-e00x")
    recorder = deployed(replace(spec, nebius=nebius, nfs=NFS))
    assert recorder.of("nebius:vpc/v1:Subnet") == []
    assert "10.0.0.0/16" in spec_of(recorder, INSTANCE, "h100-prod-nfs")["cloud_init_user_data"]


def test_users_of_the_nodes_may_enter_the_machine_too(deployed: Deploy, load: Load) -> None:
    spec = load("h100-prod")
    user = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))
    nodes = replace(spec.nodes, ssh_users=(user,))
    recorder = deployed(replace(spec, nodes=nodes, nfs=NFS))
    data = spec_of(recorder, INSTANCE, "h100-prod-nfs")["cloud_init_user_data"]
    assert "ssh-ed25519 AAAA ops" in data
