"""User data of the NFS server: what it exports, and that it never formats what holds files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.render.nodes import disk_spec, machine_spec, nfs_user_data, volume_script
from infra.state import Cache
from stacks.spec import StackSpec
from stacks.spec.nodes import (
    Billing,
    BootDiskSpec,
    DataDisksSpec,
    MachineSpec,
    NfsSpec,
    NodeUserSpec,
)
from stacks.spec.storage import DiskType

NFS = NfsSpec(
    platform="cpu-d3",
    preset="16vcpu-64gb",
    boot_disk=BootDiskSpec(size_gib=64),
    data_disks=DataDisksSpec(size_gib=93, count=2),
)
USER = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))


def test_the_user_data_of_two_disks_is_the_golden_one(
    spec: StackSpec, golden: Callable[[str, str], None]
) -> None:
    served = replace(spec, nfs=NFS, nodes=replace(spec.nodes, ssh_users=(USER,)))
    golden("cloud_init/nfs.yaml", nfs_user_data(served, ["10.0.0.0/16", "10.1.0.0/16"]))


def test_nobody_enters_a_server_of_a_stack_without_users_of_nodes(spec: StackSpec) -> None:
    document = json.loads(nfs_user_data(replace(spec, nfs=NFS), ["10.0.0.0/16"]).partition("\n")[2])
    assert "users" not in document


@pytest.mark.parametrize("billing", [Billing.ON_DEMAND, Billing.PREEMPTIBLE])
def test_a_machine_with_everything_is_one_that_the_api_takes(billing: Billing) -> None:
    machine = MachineSpec(
        platform="cpu-d3",
        preset="4vcpu-16gb",
        boot_disk=BootDiskSpec(size_gib=64),
        billing=billing,
        public_ip=True,
    )
    spec = machine_spec(
        machine,
        subnet_id="vpcsubnet-e00x",
        allocation_id="vpcallocation-e00x",
        boot_disk_id="computedisk-e00x",
        data_disk_ids=["computedisk-e00y", "computedisk-e00z"],
        user_data="#cloud-config\n{}",
    )
    assert refused("Instance", spec) == []
    assert ("preemptible" in spec) is (billing is Billing.PREEMPTIBLE)
    assert refused("Disk", disk_spec(DiskType.NETWORK_SSD_IO_M3, 93)) == []
    image = disk_spec(DiskType.NETWORK_SSD, 64, image_family="ubuntu22.04-driverless")
    assert refused("Disk", image) == []


def refused(type_: str, spec: dict[str, Any]) -> list[Any]:
    """What the API's own rules refuse."""
    kind = ResourceType.of_token(Schema(Cache.from_environ().root), f"nebius:compute/v1:{type_}")
    return kind.check({"metadata": {"parent_id": "project-e00x", "name": "x"}, "spec": spec})[1]


class Machine:
    """Disks by their signatures; every command that would change something is written down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.path = folder / "srv"
        for name in ("mdadm", "mkfs.ext4", "mount", "resize2fs", "exportfs"):
            self.command(name, f'echo "{name} $*" >> {folder}/calls')
        self.command("udevadm", ":")
        self.command("mountpoint", f"test -e {folder}/mounted")
        self.command("lsblk", f"cat {folder}/lsblk 2>/dev/null || :")
        # The signature of a disk is its text; an array that was just made has none.
        self.command("wipefs", 'for last in "$@"; do :; done; cat "$last" 2>/dev/null || :')

    def command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def boot(self, *signatures: str, array: str = "") -> subprocess.CompletedProcess[str]:
        """Runs the script over disks with these signatures, and an array with that one."""
        script = volume_script(len(signatures))
        for index, text in enumerate(signatures):
            disk = self.folder / f"disk{index}"
            disk.write_text(text)
            script = script.replace(f"/dev/disk/by-id/virtio-data-{index}", str(disk))
        (self.folder / "array").write_text(array)
        script = script.replace("/dev/md/nfs", str(self.folder / "array"))
        script = script.replace("/srv/nfs", str(self.path)).replace("[ -b ", "[ -f ")
        return subprocess.run(
            ["bash", "-c", script],
            env={"PATH": f"{self.bin}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )

    @property
    def calls(self) -> list[str]:
        """Names of the commands that ran, in order, `mdadm` with what it did."""
        path = self.folder / "calls"
        lines = [] if not path.exists() else path.read_text().splitlines()
        return [
            " ".join(line.split()[:2]) if "mdadm" in line else line.split()[0] for line in lines
        ]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


MOUNTED = ["mount", "resize2fs", "exportfs"]


def test_one_empty_disk_gets_a_filesystem_and_no_array(machine: Machine) -> None:
    done = machine.boot("")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls == ["mkfs.ext4", *MOUNTED]


def test_a_disk_with_files_is_mounted_as_it_is(machine: Machine) -> None:
    assert machine.boot("ext4").returncode == 0
    assert machine.calls == MOUNTED


def test_a_disk_with_something_else_is_refused_and_left_alone(machine: Machine) -> None:
    done = machine.boot("xfs")
    assert done.returncode == 1
    assert "holds xfs, not ext4" in done.stderr
    assert machine.calls == []


def test_several_empty_disks_become_one_array(machine: Machine) -> None:
    assert machine.boot("", "", "").returncode == 0
    assert machine.calls == ["mdadm --create", "mkfs.ext4", *MOUNTED]


def test_a_new_machine_takes_the_array_of_the_old_one(machine: Machine) -> None:
    done = machine.boot("linux_raid_member", "linux_raid_member", array="ext4")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls == ["mdadm --assemble", *MOUNTED]


def test_an_array_that_the_system_assembled_is_used_under_its_name(machine: Machine) -> None:
    known = machine.folder / "md127"
    known.write_text("ext4")
    (machine.folder / "lsblk").write_text(f"/dev/vdb disk\n{known} raid0\n")
    done = machine.boot("linux_raid_member", "linux_raid_member")
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.calls == MOUNTED
    assert str(known) in (machine.folder / "calls").read_text()


@pytest.mark.parametrize(
    ("signatures", "text"),
    [
        (("linux_raid_member", ""), "1 of 2 disks belong to an array"),
        (("ext4", ""), "holds something else than part of an array"),
        (("linux_raid_member",), "part of an array of several disks"),
    ],
)
def test_another_count_of_disks_is_refused_before_anything_is_written(
    machine: Machine, signatures: tuple[str, ...], text: str
) -> None:
    """Made anew, the array would be empty: `count` is fixed once there are files."""
    done = machine.boot(*signatures)
    assert done.returncode == 1
    assert text in done.stderr
    assert machine.calls == []


def test_a_volume_that_is_mounted_is_left_alone(machine: Machine) -> None:
    (machine.folder / "mounted").touch()
    assert machine.boot("ext4").returncode == 0
    assert machine.calls == []
