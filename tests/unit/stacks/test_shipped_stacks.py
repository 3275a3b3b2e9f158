"""The shipped stacks are what the seeds ran, and load with the warnings that the seeds earn."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from itertools import permutations
from pathlib import Path

import pytest

from stacks.check import check
from stacks.load import STACKS_DIR, load_stack
from stacks.machines import MEMORY, share_of_node, workers_of
from stacks.schedule import pipeline
from stacks.spec import StackSpec
from stacks.spec.storage import DiskType
from workloads.recipes import load_recipe

TIB = 1024


@pytest.fixture
def stack(public_key_file: Path, request: pytest.FixtureRequest) -> StackSpec:
    """The stack that the test's parameter names."""
    return load_stack(request.param)


def mounts(spec: StackSpec) -> dict[str, int | None]:
    """GiB of each shared filesystem by its path in the jail."""
    return {each.mount_path: each.size_gib for each in spec.storage.submounts}


@pytest.mark.feature("S000-10", "S000-124", "S000-125", "S000-56", "S000-68")
@pytest.mark.parametrize("stack", ["l40s-dev"], indirect=True)
def test_four_l40s_workers_train_and_one_serves(stack: StackSpec):
    """Seed 000: worker-0 to worker-3 train, the fifth serves; queues of their own."""
    names = {
        partition.name: [
            f"{worker.name}-{ordinal}"
            for worker in workers_of(stack, partition.name)
            for ordinal in range(worker.max_nodes)
        ]
        for partition in stack.slurm.partitions
    }
    assert names["train"] == ["worker-0", "worker-1", "worker-2", "worker-3"]
    assert names["serve"] == ["worker-serve-0"]
    assert len(names["hidden"]) == 5
    hardware = {(worker.platform, worker.preset) for worker in stack.nodes.workers}
    assert hardware == {("gpu-l40s-d", "2gpu-64vcpu-384gb")}
    disks = {(worker.boot_disk.size_gib, worker.boot_disk.type) for worker in stack.nodes.workers}
    assert disks == {(558, DiskType.NETWORK_SSD_NON_REPLICATED)}
    of_serving = {job.name for job in stack.jobs if job.is_server or job.is_load_test}
    assert of_serving == {"serve", "serve-vllm", "load"}
    (divided,) = [job for job in stack.jobs if job.name == "serve-vllm"]
    assert (divided.nodes, divided.gpus_per_node) == (1, 2), "both GPUs of its node"
    assert (divided.container or "").startswith("vllm/vllm-openai:")
    assert {job.partition for job in stack.jobs if job.name in of_serving} == {"serve"}
    assert {job.partition for job in stack.jobs if job.name not in of_serving} == {"train"}


@pytest.mark.feature(
    "S000-59", "S000-70", "S000-74", "S000-76", "S000-77", "S000-78", "S000-79", "S000-80"
)
@pytest.mark.parametrize("stack", ["l40s-dev"], indirect=True)
def test_the_filesystems_of_seed_000_have_its_paths_and_sizes(stack: StackSpec):
    assert mounts(stack) == {"/mnt/data": TIB, "/mnt/chkpt": TIB, "/mnt/model": TIB, "/home": 256}
    assert stack.storage.jail is not None
    assert stack.storage.jail.size_gib == 256
    # The RAM disk is Soperator's own; a second one there would keep every worker from starting.
    assert stack.storage.memory is None
    places = stack.storage.places
    assert places["scratch"] == MEMORY == "/mnt/memory"
    for place in ("data", "model", "chkpt"):
        assert places[place] == f"/mnt/{place}"
    assert stack.code_path == "/home/shared/finetune_code"


@pytest.mark.feature(
    "S001-02",
    "S001-43",
    "S002-07",
    "S002-09",
    "S002-10",
    "S002-11",
    "S002-13",
    "S002-15",
    "S002-16",
)
@pytest.mark.parametrize("stack", ["h100-prod"], indirect=True)
def test_sixteen_h100_share_one_fabric_and_stay_under_the_quota(stack: StackSpec):
    """Seed 002 ran into 5 TiB of quota; seed 001 keeps checkpoints and logs in /mnt/shared."""
    (worker,) = stack.nodes.workers
    assert (worker.platform, worker.preset) == ("gpu-h100-sxm", "8gpu-128vcpu-1600gb")
    assert (worker.max_nodes, worker.infiniband_fabric) == (2, "fabric-6")
    train = [job for job in stack.jobs if job.module == "workloads.train"]
    assert [job.nodes * job.gpus_per_node for job in train] == 3 * [16], "each takes all of them"
    assert stack.nebius.region == "eu-north1"
    assert mounts(stack) == {
        "/mnt/training": 2 * TIB,
        "/mnt/inference": 768,
        "/mnt/shared": 512,
        "/home": 256,
    }
    storage = stack.storage
    own = [storage.jail, storage.controller_spool, storage.accounting, *storage.submounts]
    assert sum(each.size_gib or 0 for each in own if each is not None) <= 5 * TIB
    assert stack.storage.places["chkpt"] == "/mnt/shared/checkpoints"
    assert stack.storage.places["elastic"] == "/mnt/shared/checkpoints/elastic"
    assert stack.storage.places["logs"] == "/mnt/shared/logs"
    assert stack.storage.places["results"] == "/mnt/inference/results"
    assert stack.storage.places["data"] == "/mnt/training/data"
    assert stack.storage.places["model"] == "/mnt/training/models"
    assert [partition.name for partition in stack.slurm.partitions] == ["main", "hidden"]


@pytest.mark.feature("S001-20", "S002-06", "S002-33", "S002-61", "S002-84")
@pytest.mark.parametrize("stack", ["h100-prod"], indirect=True)
def test_seed_002_trains_on_two_nodes_and_compares_both_models_by_itself(stack: StackSpec):
    jobs = {job.name: job for job in stack.jobs}
    training = jobs["training-with-original"]
    assert (training.nodes, training.gpus_per_node, training.time_limit) == (2, 8, "06:00:00")
    finetune, evaluate = jobs["finetune"], jobs["evaluate"]
    assert (finetune.nodes, finetune.gpus_per_node) == (2, 8)
    assert (evaluate.nodes, evaluate.after) == (1, ("finetune",))
    needed = {"prepare-data", "finetune", "inference-original", "inference-trained"}
    assert needed < {job.name for job in pipeline(stack, "compare")}
    sharded = load_recipe(jobs["finetune-zero3"].recipe).train
    assert sharded is not None
    assert (sharded.strategy, jobs["finetune-zero3"].nodes) == ("fsdp", 2)
    assert set(jobs["compare"].after) == {"inference-original", "inference-trained"}
    for one, other in permutations(sorted(jobs["compare"].after)):
        assert one not in {job.name for job in pipeline(stack, other)}, "they run side by side"
    both = [jobs[name] for name in jobs["compare"].after]
    assert [(job.nodes, job.gpus_per_node) for job in both] == [(2, 4), (2, 4)], "half of each node"


@pytest.mark.feature(
    "S003-34",
    "S003-43",
    "S003-44",
    "S003-45",
    "S003-46",
    "S003-47",
    "S003-48",
    "S003-61",
    "S003-62",
    "S003-63",
    "S003-64",
)
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
    (finetune,) = (job for job in stack.jobs if job.name == "finetune")
    assert finetune.environment["NCCL_DEBUG"] == "INFO"
    places = stack.storage.places
    assert places["data"] == "/mnt/training-data/datasets"
    assert places["cache"] == "/mnt/training-data/cache"
    assert len(set(places.values())) == len(places), "each has a folder of its own"


@pytest.mark.feature("S003-75")
@pytest.mark.parametrize("stack", ["h200-elastic"], indirect=True)
def test_a_python_environment_on_the_disk_of_one_node_is_refused(stack: StackSpec):
    """The login node makes it, and every worker runs it."""
    assert stack.nodes.workers[0].local_disks[0].mount_path == "/mnt/scratch"
    paths = {"code_path", "python_env_path"}
    assert not paths & {each.path.partition(".")[2] for each in check(stack)}
    moved = check(replace(stack, python_env_path="/mnt/scratch/venv"))
    (problem,) = [each for each in moved if each.rule == "code.on-one-node"]
    assert (problem.level, problem.path) == ("error", "h200-elastic.python_env_path")
    assert "the login node's files would not reach the jobs" in str(problem)


@pytest.mark.feature("S000-11")
@pytest.mark.parametrize("stack", ["l40s-dev", "h100-prod", "h200-elastic", "local"], indirect=True)
def test_the_evaluation_waits_for_the_training(stack: StackSpec):
    """Slurm starts it by itself once the training succeeded (afterok)."""
    jobs = {job.name: job for job in stack.jobs}
    assert jobs["evaluate"].module == "workloads.evaluate"
    assert jobs["evaluate"].after == ("finetune",)
    assert jobs["finetune"].module == "workloads.train"


@pytest.mark.feature("S000-03")
@pytest.mark.parametrize("stack", ["l40s-dev", "h100-prod", "h200-elastic"], indirect=True)
def test_no_gpu_job_starts_before_the_acceptance(stack: StackSpec):
    """Seed 000 checks the GPUs first; a job whose need failed is cancelled by Slurm (afterok)."""
    with_gpus = [job.name for job in stack.jobs if job.gpus_per_node and job.name != "accept"]
    assert {"finetune", "evaluate"} <= set(with_gpus)
    for name in with_gpus:
        assert "accept" in [job.name for job in pipeline(stack, name)], name


@pytest.mark.feature("S000-69", "S002-08")
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


@pytest.mark.feature("S003-53")
@pytest.mark.parametrize("stack", ["l40s-dev", "h100-prod", "h200-elastic"], indirect=True)
def test_every_training_is_started_again_three_times(stack: StackSpec):
    trainings = [job for job in stack.jobs if job.module == "workloads.train"]
    assert trainings
    assert {job.restarts for job in trainings} == {3}


@pytest.mark.feature("S002-46", "S002-89")
@pytest.mark.parametrize("stack", ["h100-prod"], indirect=True)
def test_the_script_of_seed_002_has_its_path(stack: StackSpec):
    """`watch -n 5 /opt/demo/monitoring/check_gpu_util.sh`, on every node and with its options."""
    (file,) = stack.soperator.jail_files
    assert (file.path, file.mode) == ("/opt/demo/monitoring/check_gpu_util.sh", "0755")
    first, command, end = file.content.split("\n")
    assert (first, end) == ("#!/bin/bash", "")
    script = command.removeprefix("exec bash ").removesuffix(' "$@"')
    inside = script.removeprefix(f"{stack.code_path}/current/")
    assert (STACKS_DIR.parent / inside).is_file(), script


@pytest.mark.parametrize(
    ("line", "share"),
    [("OverSubscribe=EXCLUSIVE", 1), ("oversubscribe=exclusive", 1), ("OverSubscribe=YES", "0.25")],
)
@pytest.mark.parametrize("stack", ["local"], indirect=True)
def test_a_partition_that_gives_whole_nodes_says_so_in_any_case(
    stack: StackSpec, line: str, share: int | str
):
    """Slurm reads its keys and words so; a share would be charged for a node."""
    (first, *others) = stack.slurm.partitions
    slurm = replace(stack.slurm, partitions=(replace(first, config=line), *others))
    worker = replace(stack.nodes.workers[0], platform="cpu-d3", preset="4vcpu-16gb")
    found = share_of_node(replace(stack, slurm=slurm), first.name, worker, 0, 1)
    assert found == Decimal(share)
