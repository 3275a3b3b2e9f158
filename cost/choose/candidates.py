"""Other ways to declare the same stack: candidates(spec) -> changed specs with the changed keys.

Preset, count, billing and region of one nodeset may change, its jobs reshaped to the same number of
GPUs; and nodes that nothing uses. A candidate need not be valid: stacks.check decides that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stacks.catalog import FABRICS, PLATFORMS, REGIONS, Preset
from stacks.check import check
from stacks.rules.jobs import nodesets_of
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One config key of a stack with its value before and after."""

    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.key}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A changed stack."""

    spec: StackSpec
    changes: tuple[Change, ...]
    notes: tuple[str, ...]
    """What the change costs beside money."""
    worker: WorkerSpec | None
    """The changed nodeset; None when no nodeset changes."""


def candidates(
    spec: StackSpec, *, proven: frozenset[tuple[str, str]] = frozenset()
) -> Iterator[Candidate]:
    """Changed stacks; `proven` are platforms and presets that the stack's jobs have passed on.

    What may not fit is left out unless it is proven: GPUs with less memory than the declared ones,
    nodes with less memory than their GPUs, and fewer GPUs on a node than a job asks for there.
    """
    yield from _without_spare_nodes(spec)
    for region in (spec.nebius.region, *(name for name in REGIONS if name != spec.nebius.region)):
        for worker in spec.nodes.workers:
            for shape in _shapes(spec, worker, region, proven):
                if shape != worker or region != spec.nebius.region:
                    yield _with_worker(spec, worker, shape, region)


def _without_spare_nodes(spec: StackSpec) -> Iterator[Candidate]:
    """Without the nodes that stacks.check calls unused."""
    nodes, changes = spec.nodes, list[Change]()
    for problem in check(spec):
        spare = problem.spare_nodes
        group = None
        if spare is not None and spare.role == "controller":
            group = nodes.controller
        elif spare is not None and spare.role == "accounting":
            group = nodes.accounting
        if spare is None or group is None:
            continue
        count = group.max_nodes - spare.count
        slim = replace(group, min_nodes=min(group.min_nodes, count), max_nodes=count)
        nodes = (
            replace(nodes, controller=slim)
            if spare.role == "controller"
            else replace(nodes, accounting=slim)
        )
        changes.append(
            Change(key=f"nodes.{spare.role}.nodes", before=str(group.max_nodes), after=str(count))
        )
    if changes:
        yield Candidate(
            spec=replace(spec, nodes=nodes), changes=tuple(changes), notes=(), worker=None
        )


def _shapes(
    spec: StackSpec, worker: WorkerSpec, region: str, proven: frozenset[tuple[str, str]]
) -> Iterator[WorkerSpec]:
    """The nodeset in every preset that its jobs fit on, as far as is known."""
    old = worker.hardware
    if old is None:
        return
    declared_gb = PLATFORMS[worker.platform].gpu_memory_gb or 0
    together = max((job.gpus_per_node for job in spec.jobs), default=0)
    for platform in PLATFORMS.values():
        if region not in platform.regions:
            continue
        for preset in platform.presets.values():
            gpu_gb = platform.gpu_memory_gb or 0
            fits = gpu_gb >= declared_gb and preset.memory_gib >= preset.gpus * gpu_gb
            if bool(preset.gpus) != bool(old.gpus) or preset.gpus < min(together, old.gpus):
                continue
            if not fits and (platform.name, preset.name) not in proven:
                continue
            for billing in dict.fromkeys((worker.billing, Billing.ON_DEMAND, Billing.PREEMPTIBLE)):
                shape = replace(worker, platform=platform.name, preset=preset.name, billing=billing)
                yield from _counts(spec, _with_node(spec, worker, shape, region), old, preset)


def _with_node(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> WorkerSpec:
    """The shape with a fabric and shared memory that its preset and region have."""
    preset = PLATFORMS[shape.platform].presets[shape.preset]
    memory_gib = 0 if spec.storage.memory is None else spec.storage.memory.size_gib
    if memory_gib + worker.shared_memory_gib > preset.memory_gib:
        shape = replace(shape, shared_memory_gib=max(1, (preset.memory_gib - memory_gib) // 2))
    if worker.infiniband_fabric is None:
        return shape
    if (shape.platform, region) == (worker.platform, spec.nebius.region):
        fabric = worker.infiniband_fabric
    else:
        here = (item.name for item in FABRICS.values() if item.region == region)
        fabric = next((name for name in here if FABRICS[name].platform == shape.platform), None)
    return replace(shape, infiniband_fabric=fabric if preset.allows_gpu_cluster else None)


def _counts(
    spec: StackSpec, shape: WorkerSpec, old: Preset, preset: Preset
) -> Iterator[WorkerSpec]:
    """The shape with the GPUs that are declared, and with the nodes that jobs and chats need."""

    def same(num_nodes: int) -> int:
        return -(-num_nodes * old.gpus // preset.gpus) if preset.gpus else num_nodes

    keep = replace(shape, min_nodes=same(shape.min_nodes), max_nodes=same(shape.max_nodes))
    yield keep
    alone = [job for job in spec.jobs if _is_alone(spec, job, shape.name)]
    needed = max((_reshaped(job, old, preset).nodes for job in alone), default=1)
    if spec.chat.serving_nodeset == shape.name:
        needed += spec.chat.serving_nodes
    if needed < keep.max_nodes:
        yield replace(shape, min_nodes=min(needed, keep.min_nodes), max_nodes=needed)


def _names(spec: StackSpec, job: JobSpec) -> list[str]:
    """Nodesets of the job's partition."""
    partition = next((part for part in spec.slurm.partitions if part.name == job.partition), None)
    return [] if partition is None else [item.name for item in nodesets_of(spec, partition)]


def _is_alone(spec: StackSpec, job: JobSpec, nodeset: str) -> bool:
    """Whether the job can run on this nodeset only."""
    return _names(spec, job) == [nodeset]


def _reshaped(job: JobSpec, old: Preset, preset: Preset) -> JobSpec:
    """The job with as many GPUs in all, on nodes of the preset, and CPUs that they have."""
    if job.gpus_per_node and preset.gpus and preset.gpus != old.gpus:
        total = job.nodes * job.gpus_per_node
        per_node = next(gpus for gpus in range(preset.gpus, 0, -1) if total % gpus == 0)
        least = job.least_nodes
        if least is not None:
            least = math.ceil(least * job.gpus_per_node / per_node)
        job = replace(job, nodes=total // per_node, gpus_per_node=per_node, least_nodes=least)
    if job.cpus_per_task is None:
        return job
    return replace(
        job, cpus_per_task=min(job.cpus_per_task, preset.vcpus // max(1, job.gpus_per_node))
    )


def _with_worker(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> Candidate:
    """The stack with the nodeset in its new shape and place, and its jobs to match."""
    old = PLATFORMS[worker.platform].presets[worker.preset]
    preset = PLATFORMS[shape.platform].presets[shape.preset]
    jobs = tuple(
        _reshaped(job, old, preset) if _is_alone(spec, job, worker.name) else job
        for job in spec.jobs
    )
    workers = tuple(shape if item is worker else item for item in spec.nodes.workers)
    changed = replace(
        spec,
        nebius=replace(spec.nebius, region=region),
        nodes=replace(spec.nodes, workers=workers),
        jobs=jobs,
    )
    if (worker.platform, worker.preset) != (shape.platform, shape.preset):
        # Speeds that were declared for other nodes than it has now say nothing.
        kept = {job.name for job in spec.jobs if worker.name not in _names(spec, job)}
        runs = tuple(
            run if run.job in kept else replace(run, train_tokens_per_s=None, source=None)
            for run in spec.runs
        )
        serves = spec.chat.serving_nodeset in (None, worker.name)
        chat = replace(spec.chat, speeds=()) if serves else spec.chat
        changed = replace(changed, runs=runs, chat=chat)
    changes = [
        *_changed("nebius.region", spec.nebius.region, region),
        *_worker_changes(worker, shape),
        *_job_changes(spec.jobs, jobs),
    ]
    return Candidate(
        spec=changed,
        changes=tuple(changes),
        notes=tuple(_notes(spec, worker, shape, region)),
        worker=shape,
    )


def _worker_changes(worker: WorkerSpec, shape: WorkerSpec) -> Iterator[Change]:
    path = f"nodes.workers[{worker.name}]"
    yield from _changed(f"{path}.platform", worker.platform, shape.platform)
    yield from _changed(f"{path}.preset", worker.preset, shape.preset)
    if (shape.min_nodes, worker.min_nodes) == (shape.max_nodes, worker.max_nodes):
        yield from _changed(f"{path}.nodes", worker.max_nodes, shape.max_nodes)
    else:
        yield from _changed(f"{path}.min_nodes", worker.min_nodes, shape.min_nodes)
        yield from _changed(f"{path}.max_nodes", worker.max_nodes, shape.max_nodes)
    yield from _changed(f"{path}.billing", worker.billing, shape.billing)
    fabrics = worker.infiniband_fabric, shape.infiniband_fabric
    yield from _changed(f"{path}.infiniband_fabric", *fabrics)
    memory_gib = worker.shared_memory_gib, shape.shared_memory_gib
    yield from _changed(f"{path}.shared_memory_gib", *memory_gib)


def _job_changes(before: tuple[JobSpec, ...], after: tuple[JobSpec, ...]) -> Iterator[Change]:
    for old, new in zip(before, after, strict=True):
        path = f"jobs[{old.name}]"
        yield from _changed(f"{path}.nodes", old.nodes, new.nodes)
        yield from _changed(f"{path}.least_nodes", old.least_nodes, new.least_nodes)
        yield from _changed(f"{path}.gpus_per_node", old.gpus_per_node, new.gpus_per_node)
        yield from _changed(f"{path}.cpus_per_task", old.cpus_per_task, new.cpus_per_task)


def _changed(key: str, before: object, after: object) -> Iterator[Change]:
    if before != after:
        yield Change(key=key, before=str(before), after=str(after))


def _notes(spec: StackSpec, worker: WorkerSpec, shape: WorkerSpec, region: str) -> Iterator[str]:
    if region != spec.nebius.region:
        yield f"everything is made anew in {region}: the data must be copied there"
    if shape.billing is Billing.PREEMPTIBLE and worker.billing is not Billing.PREEMPTIBLE:
        yield "nodes can be taken away: jobs must save and resume"
    if worker.infiniband_fabric is not None and shape.infiniband_fabric is None:
        yield "nodes talk over Ethernet, not InfiniBand"
