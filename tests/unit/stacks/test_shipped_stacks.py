"""The shipped stacks are what the seeds ran, and load with the warnings that the seeds earn."""

from __future__ import annotations

from pathlib import Path

import pytest

from stacks.check import check
from stacks.load import load_stack
from stacks.rules.jobs import nodesets_of
from stacks.soperator_mounts import MEMORY
from stacks.spec import StackSpec

TIB = 1024


@pytest.fixture
def stack(public_key_file: Path, request: pytest.FixtureRequest) -> StackSpec:
    """The stack that the test's parameter names."""
    return load_stack(request.param)


def mounts(spec: StackSpec) -> dict[str, int | None]:
    """GiB of each shared filesystem by its path in the jail."""
    return {each.mount_path: each.size_gib for each in spec.storage.submounts}


@pytest.mark.parametrize("stack", ["l40s-dev"], indirect=True)
def test_four_l40s_workers_train_and_one_serves(stack: StackSpec):
    """Seed 000: worker-0 to worker-3 train, the fifth serves; queues of their own."""
    names = {
        partition.name: [
            f"{worker.name}-{ordinal}"
            for worker in nodesets_of(stack, partition)
            for ordinal in range(worker.max_nodes)
        ]
        for partition in stack.slurm.partitions
    }
    assert names["train"] == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert names["serve"] == ["worker-serve-0"]
    assert len(names["hidden"]) == 5
    hardware = {(worker.platform, worker.preset) for worker in stack.nodes.workers}
    assert hardware == {("gpu-l40s-d", "2gpu-64vcpu-384gb")}
    of_serving = {job.name for job in stack.jobs if job.is_server or job.is_load_test}
    assert of_serving == {"serve", "load"}
    assert {job.partition for job in stack.jobs if job.name in of_serving} == {"serve"}
    assert {job.partition for job in stack.jobs if job.name not in of_serving} == {"train"}


@pytest.mark.parametrize("stack", ["l40s-dev"], indirect=True)
def test_the_filesystems_of_seed_000_have_its_paths_and_sizes(stack: StackSpec):
    assert mounts(stack) == {"/mnt/data": TIB, "/mnt/chkpt": TIB, "/mnt/model": TIB, "/home": 256}
    # The RAM disk is Soperator's own; a second one there would keep every worker from starting.
    assert stack.storage.memory is None
    assert stack.storage.places["scratch"] == MEMORY == "/mnt/memory"
    assert stack.code_path == "/home/shared/finetune_code"


@pytest.mark.parametrize("stack", ["h100-prod"], indirect=True)
def test_sixteen_h100_share_one_fabric_and_stay_under_the_quota(stack: StackSpec):
    """Seed 002 ran into 5 TiB of quota; seed 001 keeps checkpoints and logs in /mnt/shared."""
    (worker,) = stack.nodes.workers
    assert (worker.platform, worker.preset) == ("gpu-h100-sxm", "8gpu-128vcpu-1600gb")
    assert (worker.max_nodes, worker.infiniband_fabric) == (2, "fabric-6")
    assert stack.nebius.region == "eu-north1"
    assert {"/mnt/training", "/mnt/inference", "/mnt/shared"} < mounts(stack).keys()
    storage = stack.storage
    own = [storage.jail, storage.controller_spool, storage.accounting, *storage.submounts]
    assert sum(each.size_gib or 0 for each in own if each is not None) <= 5 * TIB
    assert stack.storage.places["chkpt"] == "/mnt/shared/checkpoints"
    assert stack.storage.places["logs"] == "/mnt/shared/logs"
    assert [partition.name for partition in stack.slurm.partitions] == ["main", "hidden"]


@pytest.mark.parametrize("stack", ["h200-elastic"], indirect=True)
def test_four_single_h200_have_scratch_of_their_own(stack: StackSpec):
    """Seed 003: durable data is shared, 186 GiB of scratch a node are not."""
    (worker,) = stack.nodes.workers
    assert (worker.platform, worker.preset) == ("gpu-h200-sxm", "1gpu-16vcpu-200gb")
    assert (worker.max_nodes, worker.boot_disk.size_gib) == (4, 256)
    assert mounts(stack)["/mnt/training-data"] == TIB
    assert mounts(stack)["/mnt/checkpoints"] == 745
    (scratch,) = worker.local_disks
    assert (scratch.mount_path, scratch.size_gib) == ("/mnt/scratch", 186)
    assert scratch.folders == ("tmp", "preprocessed")
    for place in ("data", "cache"):
        assert stack.storage.places[place].startswith("/mnt/training-data/")


@pytest.mark.parametrize(
    ("stack", "rules"),
    [
        (
            "l40s-dev",
            {"storage.backup-size", "nodes.spare", "nodes.insufficient", "nodes.ethernet"},
        ),
        ("h100-prod", set[str]()),
        ("h200-elastic", {"nodes.boot-disk-advised", "nodes.ethernet"}),
        ("local", {"nodes.system-advised", "nodes.insufficient", "nodes.ethernet"}),
    ],
    indirect=["stack"],
)
def test_the_seeds_own_choices_are_warnings(stack: StackSpec, rules: set[str]):
    """Two controllers, a login node of 4 vCPUs, no InfiniBand, a boot disk of 256 GiB."""
    problems = check(stack)
    assert {problem.level for problem in problems} <= {"warning"}
    assert {problem.rule for problem in problems} == rules


@pytest.mark.parametrize("stack", ["h200-elastic"], indirect=True)
def test_the_warning_says_that_the_preset_joins_no_fabric(stack: StackSpec):
    (problem,) = [each for each in check(stack) if each.rule == "nodes.ethernet"]
    assert "'1gpu-16vcpu-200gb' of 'gpu-h200-sxm' cannot join an InfiniBand fabric" in str(problem)
