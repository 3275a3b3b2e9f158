"""User data of nodes: nothing where nothing is asked, scripts that a shell runs as they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.render.nodes import cloud_init, driver_options
from stacks.spec import StackSpec
from stacks.spec.nodes import LocalNvmeSpec, NodeUserSpec, VolumeFilesystem, WorkerSpec

OPTION = "options nvidia NVreg_RestrictProfilingToAdminUsers=0 NVreg_EnableStreamMemOPs=1"
USER = NodeUserSpec(name="ops", ssh_public_keys=("ssh-ed25519 AAAA ops",))


@pytest.fixture
def worker(spec: StackSpec) -> WorkerSpec:
    return spec.nodes.workers[0]


def document(text: str | None) -> dict[str, Any]:
    """The user data as cloud-init reads it."""
    assert text is not None
    assert text.startswith("#cloud-config\n")
    return yaml.safe_load(text)


def scripts(text: str | None) -> dict[str, str]:
    """Name -> text of each script that runs at every boot."""
    files = document(text)["write_files"]
    return {
        Path(file["path"]).name: file["content"] for file in files if "per-boot" in file["path"]
    }


def test_a_node_that_needs_nothing_has_no_user_data(spec: StackSpec, worker: WorkerSpec) -> None:
    assert cloud_init(worker, ()) is None
    assert cloud_init(spec.nodes.login, ()) is None


def test_a_full_worker_is_the_golden_one(
    worker: WorkerSpec, golden: Callable[[str, str], None]
) -> None:
    full = replace(worker, nvidia_config_lines=(OPTION,), local_nvme=LocalNvmeSpec())
    text = cloud_init(full, (USER,))
    assert text is not None
    golden("cloud_init/worker.yaml", text)


def test_users_keep_the_images_own_and_need_no_password_for_root(worker: WorkerSpec) -> None:
    users = document(cloud_init(worker, (USER,)))["users"]
    assert users[0] == "default"
    assert users[1]["ssh_authorized_keys"] == ["ssh-ed25519 AAAA ops"]
    assert users[1]["sudo"] == "ALL=(ALL) NOPASSWD:ALL"


def test_a_text_that_yaml_would_read_as_something_else_stays_text(worker: WorkerSpec) -> None:
    odd = NodeUserSpec(name="yes", ssh_public_keys=("ssh-ed25519 AAAA a: b # c",))
    (_, user) = document(cloud_init(worker, (odd,)))["users"]
    assert (user["name"], user["ssh_authorized_keys"]) == ("yes", ["ssh-ed25519 AAAA a: b # c"])


def test_every_script_is_one_that_the_shell_can_read(worker: WorkerSpec) -> None:
    for filesystem in VolumeFilesystem:
        nvme = LocalNvmeSpec(mount_path="/mnt/it's", filesystem=filesystem)
        full = replace(worker, nvidia_config_lines=(OPTION,), local_nvme=nvme)
        found = scripts(cloud_init(full, ()))
        assert list(found) == ["10-nvidia-config", "20-local-nvme"]
        for text in found.values():
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert (done.returncode, done.stderr) == (0, "")


def test_what_lies_on_a_local_disk_is_its_owners(worker: WorkerSpec) -> None:
    """Without the sticky bit users remove and replace each other's staged files."""
    full = replace(worker, local_nvme=LocalNvmeSpec())
    assert 'chmod 1777 "$path"' in scripts(cloud_init(full, ()))["20-local-nvme"]


def test_options_are_compared_under_the_name_that_the_driver_shows() -> None:
    assert driver_options([OPTION, "blacklist nouveau"]) == [
        ("RmProfilingAdminOnly", "0"),
        ("EnableStreamMemOPs", "1"),
    ]


class Machine:
    """A node whose driver shows `params`; restarts are counted, not made."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder = folder
        self.params = folder / "params"
        self.script = script.replace("/proc/driver/nvidia/params", str(self.params)).replace(
            "/var/lib/nvidia-config-restarted", str(folder / "restarted")
        )
        bin_ = folder / "bin"
        bin_.mkdir()
        for name in ("reboot", "update-initramfs"):
            (bin_ / name).write_text(f"#!/bin/sh\necho {name} >> {folder}/calls\n")
            (bin_ / name).chmod(0o755)

    def boot(self, params: str) -> subprocess.CompletedProcess[str]:
        self.params.write_text(params)
        return subprocess.run(
            ["sh", "-c", self.script],
            env={"PATH": f"{self.folder}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )

    @property
    def restarts(self) -> int:
        calls = self.folder / "calls"
        return calls.read_text().split().count("reboot") if calls.exists() else 0


@pytest.fixture
def machine(tmp_path: Path, worker: WorkerSpec) -> Machine:
    full = replace(worker, nvidia_config_lines=(OPTION,))
    return Machine(tmp_path, scripts(cloud_init(full, ()))["10-nvidia-config"])


WANTED = "RmProfilingAdminOnly: 0\nEnableStreamMemOPs: 1\n"
OTHER = "RmProfilingAdminOnly: 1\nEnableStreamMemOPs: 1\n"


def test_a_driver_with_the_declared_options_is_left_alone(machine: Machine) -> None:
    assert machine.boot(WANTED).returncode == 0
    assert machine.restarts == 0


def test_a_driver_with_other_options_restarts_the_node_once(machine: Machine) -> None:
    assert machine.boot(OTHER).returncode == 0
    assert machine.restarts == 1
    assert machine.boot(WANTED).returncode == 0
    assert machine.restarts == 1


def test_a_node_that_a_restart_does_not_help_says_so_and_stays_up(machine: Machine) -> None:
    """A second restart would become an endless row of them."""
    machine.boot(OTHER)
    again = machine.boot(OTHER)
    assert again.returncode == 1
    assert "RmProfilingAdminOnly is '1' after a restart, not '0'" in again.stderr
    assert machine.restarts == 1


def test_an_option_that_the_driver_does_not_show_is_not_checked(machine: Machine) -> None:
    assert machine.boot("Other: 1\n").returncode == 0
    assert machine.restarts == 0


def test_old_arrays_and_filesystems_are_wiped_before_the_new_array(worker: WorkerSpec) -> None:
    """A drive that another node had would bring its array, and mkfs would ask a question."""
    text = scripts(cloud_init(replace(worker, local_nvme=LocalNvmeSpec()), ()))["20-local-nvme"]
    order = [text.index(step) for step in ("--zero-superblock", "wipefs --all", "mdadm --create")]
    assert order == sorted(order)


def test_user_data_is_json_behind_its_heading(worker: WorkerSpec) -> None:
    text = cloud_init(worker, (USER,))
    assert text is not None
    assert json.loads(text.partition("\n")[2])["users"]
