"""Stack outputs that are plain values."""

from __future__ import annotations

import ast
import shlex
from dataclasses import replace

import pytest

from infra.render import login
from infra.state import CHECKOUT
from stacks.spec import StackSpec
from stacks.spec.storage import MemoryMountSpec, SubmountSpec


@pytest.mark.feature("S003-68")
def test_every_mount_path_says_what_stands_behind_it(spec: StackSpec) -> None:
    assert login.mounts(spec) == {
        "/": "filesystem jail, 256 GiB",
        "/mnt/data": "filesystem data, 256 GiB",
        "/mnt/chkpt": "filesystem chkpt, 256 GiB",
        "/mnt/model": "filesystem model, 256 GiB",
        "/home": "filesystem home, 256 GiB",
        "/mnt/memory": "tmpfs, at most 341 GiB a node",
    }


@pytest.mark.feature("S003-68")
def test_the_program_exports_all_outputs_of_the_stack_its_bill_and_its_warnings() -> None:
    """What the file of `pulumi stack output --json` holds; tests/engine read it."""
    program = ast.parse((CHECKOUT / "__main__.py").read_text(encoding="utf-8"))
    calls = [each for each in ast.walk(program) if isinstance(each, ast.Call)]
    exports = [each.args for each in calls if ast.unparse(each.func) == "pulumi.export"]
    loops = [each for each in ast.walk(program) if isinstance(each, ast.For)]
    assert {ast.unparse(name) for name, _ in exports} == {"name", "'cost'", "'warnings'"}
    assert "stack.outputs.items()" in [ast.unparse(each.iter) for each in loops]


def test_an_existing_filesystem_is_named_by_its_id_and_not_by_a_size(spec: StackSpec) -> None:
    old = SubmountSpec(name="old", mount_path="/mnt/old", existing_id="computefilesystem-1")
    found = login.mounts(replace(spec, storage=replace(spec.storage, submounts=(old,))))
    assert found["/mnt/old"] == "filesystem old, existing computefilesystem-1"


def test_soperators_memory_is_there_although_nobody_declares_it(bare: StackSpec) -> None:
    own = {"/mnt/memory": "tmpfs, at most 341 GiB a node"}
    assert login.mounts(bare) == {"/": "filesystem jail, 256 GiB", **own}


def test_a_declared_tmpfs_stands_beside_soperators_of_each_size(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    larger = replace(worker, name="h100", platform="gpu-h100-sxm", preset="8gpu-128vcpu-1600gb")
    memory = MemoryMountSpec(mount_path="/mnt/ram", size_gib=2)
    found = login.mounts(
        replace(
            spec,
            nodes=replace(spec.nodes, workers=(worker, larger)),
            storage=replace(spec.storage, memory=memory),
        )
    )
    assert found["/mnt/memory"] == "tmpfs, at most 341 or 1436 GiB a node"
    assert found["/mnt/ram"] == "tmpfs, 2 GiB a node"


@pytest.mark.feature("S003-68")
def test_every_job_has_the_command_that_starts_it(spec: StackSpec) -> None:
    commands = login.job_commands(spec)
    assert list(commands) == [job.name for job in spec.jobs]
    for name, line in commands.items():
        assert shlex.split(line) == ["soperator", "submit", name, "--stack", "local"]


def test_a_nodeset_lists_the_nodes_that_always_exist(spec: StackSpec) -> None:
    assert login.nodesets(spec) == {
        "worker": {
            "platform": "gpu-l40s-d",
            "preset": "2gpu-64vcpu-384gb",
            "min_nodes": 2,
            "max_nodes": 2,
            "nodes": ["worker-0", "worker-1"],
        }
    }


def test_nodes_of_a_nodeset_whose_name_starts_another_stay_its_own(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    other = replace(worker, name="worker-big", min_nodes=1)
    found = login.nodesets(replace(spec, nodes=replace(spec.nodes, workers=(worker, other))))
    assert found["worker"]["nodes"] == ["worker-0", "worker-1"]
    assert found["worker-big"]["nodes"] == ["worker-big-0"]


@pytest.mark.feature("S002-29")
def test_the_ssh_command_names_a_port_only_where_it_is_not_the_usual_one() -> None:
    assert login.ssh_command("1.2.3.4", 22) == "ssh root@1.2.3.4"
    assert login.ssh_command("127.0.0.1", 30022) == "ssh -p 30022 root@127.0.0.1"
