"""Which nodes a job can have, and its share of each: CPUs and memory that go with its GPUs. Pure.

Owns what a job's text derives from the preset of its nodes: CPUs of a rank, memory, and what NCCL
must be told of the interconnect. Does not write the text: sbatch.py does.
"""

from __future__ import annotations

from collections.abc import Sequence

from stacks.catalog import find_preset
from stacks.errors import UserError
from stacks.node_capacity import slurmd_amounts
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec


class RenderError(UserError):
    """A job that this stack cannot run, with the path of the value and what is allowed."""


def nodesets_of(spec: StackSpec, job: JobSpec) -> tuple[WorkerSpec, ...]:
    """Nodesets of the job's partition whose nodes have the GPUs it asks for, in declared order."""
    partition = next((each for each in spec.slurm.partitions if each.name == job.partition), None)
    if partition is None:
        have = ", ".join(each.name for each in spec.slurm.partitions)
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.partition: {job.partition!r} is not a partition "
            f"(has: {have}); name one of these or declare it in slurm.partitions"
        )
    members = tuple(
        worker
        for worker in spec.nodes.workers
        if not partition.nodesets or worker.name in partition.nodesets
    )
    fitting = tuple(worker for worker in members if _gpus(worker) >= job.gpus_per_node)
    if not fitting:
        have = ", ".join(f"{each.name} has {_gpus(each)}" for each in members) or "no nodeset"
        raise RenderError(
            f"{spec.name}: jobs.{job.name}.gpus_per_node: {job.gpus_per_node} is more than a node "
            f"has in partition {job.partition!r} ({have}); lower it or change the preset"
        )
    return fitting


def _gpus(worker: WorkerSpec) -> int:
    preset = find_preset(worker.platform, worker.preset)
    return preset.gpus if preset else 0


def hardware_environment(worker: WorkerSpec, job: JobSpec) -> dict[str, str]:
    """Platform and preset of a node, and what NCCL must be told of its interconnect."""
    environment = {"SOPERATOR_PLATFORM": worker.platform, "SOPERATOR_PRESET": worker.preset}
    if job.gpus_per_node and job.nodes > 1:
        # NCCL reads NCCL_*; the TORCH_NCCL_ spellings in circulation have no effect. It finds
        # InfiniBand by itself; without a fabric the search costs time and can pick a dead port.
        environment["NCCL_SOCKET_IFNAME"] = "^docker0,lo"
        if not worker.has_fabric:
            environment["NCCL_IB_DISABLE"] = "1"
    return environment


def cpus_per_rank(nodesets: Sequence[WorkerSpec], job: JobSpec) -> int:
    """CPUs of a rank: the declared ones, else its GPU's share of the node with the fewest."""
    if job.cpus_per_task is not None:
        return job.cpus_per_task
    if not job.gpus_per_node:
        return 1
    presets = (find_preset(worker.platform, worker.preset) for worker in nodesets)
    return min(preset.vcpus // preset.gpus for preset in presets if preset is not None)


def memory_mib(spec: StackSpec, nodesets: Sequence[WorkerSpec], job: JobSpec) -> int:
    """MiB that go with the GPUs that the job asks for, on the node that has the least."""
    return min(_memory_mib(spec, worker, job) for worker in nodesets)


def _memory_mib(spec: StackSpec, worker: WorkerSpec, job: JobSpec) -> int:
    preset = find_preset(worker.platform, worker.preset)
    assert preset is not None
    amounts = slurmd_amounts(
        preset, worker.boot_disk.size_gib, sssd=spec.soperator.sssd is not None
    )
    return amounts.memory_mib * job.gpus_per_node // preset.gpus
