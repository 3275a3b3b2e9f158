"""What ran and what it cost: spend(rates, uses, since, until) -> Spend, from accounting x prices.

A node belongs to the jobs on it: one job alone pays the whole node, jobs that share one split it by
their dominant share (CPUs or GPUs), and a node without a job is idle. Jobs, idle nodes, control
plane and storage add up to the bill of the period. Does not own where uses come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from cost.ledger_entries import Occupancy
from cost.run_rates import RunRates, num_gpus, num_vcpus
from stacks.node_spec import WorkerSpec

_ZERO: Final = Decimal(0)
_SECONDS_PER_HOUR: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse:
    """One job as accounting tells it."""

    cluster: str
    """Host key of the login node, with which the ledger knows the job too."""
    job_id: str
    name: str
    user: str
    partition: str
    state: str
    is_finished: bool
    runs: tuple[Occupancy, ...]
    """More than one where it was preempted and started again; none where it never started."""
    cpus_per_node: int = 0
    gpus_per_node: int = 0
    array_id: str | None = None
    """Id of the array that it is a task of; None for a job that is none."""
    num_tasks: int = 1
    """More than one where tasks that never started stand under one id."""

    @property
    def forecast_key(self) -> tuple[str, str]:
        """Cluster and id under which its submission was forecast: an array has one forecast."""
        return self.cluster, self.array_id or self.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpend:
    """What one job cost inside the period."""

    use: JobUse
    node_hours: Decimal
    """Hours of nodes, shared ones by the job's share."""
    nodes_usd: Decimal | None
    """None when the price of its nodes is not known."""
    is_whole: bool
    """Whether the job began and ended inside the period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """US dollars of one stack from `since` to `until`, by what they paid for."""

    stack_name: str
    since: datetime
    until: datetime
    jobs: tuple[JobSpend, ...]
    idle_usd: Decimal
    """Worker nodes, up to min_nodes of each nodeset, while no job was on them."""
    idle_node_hours: Decimal
    control_plane_usd: Decimal
    storage_usd: Decimal
    extra_nodes_usd: Decimal
    """Worker nodes beyond min_nodes while jobs were on them; part of what jobs cost."""
    extra_disks_usd: Decimal
    """Disks of those nodes; part of storage."""
    bill_usd: Decimal
    """The stack's bill over the period, with autoscaled nodes while jobs were on them."""
    is_lower_bound: bool
    foreign_nodes: tuple[str, ...]
    """Nodes of jobs that belong to no declared nodeset: their hours have no price."""

    @property
    def jobs_usd(self) -> Decimal:
        """US dollars of all jobs whose nodes have a price."""
        return total_usd(self.jobs)

    @property
    def idle_share(self) -> Decimal | None:
        """Part of the worker nodes' US dollars that no job used, 0 to 1; None without any."""
        workers_usd = self.jobs_usd + self.idle_usd
        return None if workers_usd == 0 else self.idle_usd / workers_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stay:
    """One job on one node."""

    start_s: Decimal
    end_s: Decimal
    job: int
    weight: Decimal


def spend(rates: RunRates, uses: Sequence[JobUse], *, since: datetime, until: datetime) -> Spend:
    """The stack's US dollars over the period; jobs in the order of `uses`."""
    workers = {worker.name: worker for worker in rates.spec.nodes.workers}
    stays, foreign = _stays(uses, workers, since, until)
    period_s = _seconds(until - since)
    job_seconds: dict[tuple[int, str], Decimal] = defaultdict(Decimal)
    idle_usd = idle_hours = extra_usd = extra_disk_usd = _ZERO
    for name, worker in workers.items():
        nodes = [stays[node] for node in sorted(stays) if _nodeset(node) == name]
        for node in nodes:
            for job, seconds in _shared(node):
                job_seconds[job, name] += seconds
        idle_s, extra_s = _idle_and_extra(nodes, rates.least_nodes(worker), period_s)
        rate = rates.node_usd_per_hour[name] or _ZERO
        idle_hours += idle_s / _SECONDS_PER_HOUR
        idle_usd += rate * idle_s / _SECONDS_PER_HOUR
        extra_usd += rate * extra_s / _SECONDS_PER_HOUR
        extra_disk_usd += rates.disk_usd_per_hour[name] * extra_s / _SECONDS_PER_HOUR
    hours = period_s / _SECONDS_PER_HOUR
    return Spend(
        stack_name=rates.spec.name,
        since=since,
        until=until,
        jobs=tuple(
            _job(index, use, rates, job_seconds, since, until) for index, use in enumerate(uses)
        ),
        idle_usd=idle_usd,
        idle_node_hours=idle_hours,
        control_plane_usd=rates.control_plane_usd_per_hour * hours,
        storage_usd=rates.storage_usd_per_hour * hours + extra_disk_usd,
        extra_nodes_usd=extra_usd,
        extra_disks_usd=extra_disk_usd,
        bill_usd=rates.bill_usd_per_hour * hours + extra_usd + extra_disk_usd,
        is_lower_bound=rates.is_lower_bound or bool(foreign),
        foreign_nodes=foreign,
    )


def total_usd(jobs: Iterable[JobSpend]) -> Decimal:
    """US dollars of the jobs whose nodes have a price."""
    return sum((job.nodes_usd or _ZERO for job in jobs), _ZERO)


def grouped(
    jobs: Sequence[JobSpend], key: Callable[[JobUse], str]
) -> dict[str, tuple[JobSpend, ...]]:
    """Jobs by user, partition or name; the dearest group first, equal ones by name."""
    groups: dict[str, list[JobSpend]] = defaultdict(list)
    for job in jobs:
        groups[key(job.use)].append(job)
    order = sorted(groups, key=lambda name: (-total_usd(groups[name]), name))
    return {name: tuple(groups[name]) for name in order}


def _stays(
    uses: Sequence[JobUse],
    workers: Mapping[str, WorkerSpec],
    since: datetime,
    until: datetime,
) -> tuple[dict[str, list[_Stay]], tuple[str, ...]]:
    """Stays by node, in seconds from `since`, and nodes that no nodeset declares."""
    stays: dict[str, list[_Stay]] = defaultdict(list)
    foreign: set[str] = set()
    for index, use in enumerate(uses):
        for run in use.runs:
            start, end = max(run.started_at, since), min(run.ended_at or until, until)
            if end <= start:
                continue
            for node in run.nodes:
                worker = workers.get(_nodeset(node))
                if worker is None:
                    foreign.add(node)
                    continue
                stays[node].append(
                    _Stay(
                        start_s=_seconds(start - since),
                        end_s=_seconds(end - since),
                        job=index,
                        weight=_dominant_share(use, worker),
                    )
                )
    return stays, tuple(sorted(foreign))


def _shared(stays: Sequence[_Stay]) -> Iterable[tuple[int, Decimal]]:
    """(job, seconds of the node) for each stretch in which the same jobs are on one node."""
    events = sorted(
        (moment, is_end, number)
        for number, stay in enumerate(stays)
        for moment, is_end in ((stay.start_s, False), (stay.end_s, True))
    )
    active: dict[int, _Stay] = {}
    before = _ZERO
    for moment, is_end, number in events:
        weights = sum((stay.weight for stay in active.values()), _ZERO)
        for stay in active.values() if moment > before else ():
            yield stay.job, (moment - before) * stay.weight / weights
        before = moment
        if is_end:
            del active[number]
        else:
            active[number] = stays[number]


def _idle_and_extra(
    nodes: Sequence[Sequence[_Stay]], min_nodes: int, period_s: Decimal
) -> tuple[Decimal, Decimal]:
    """Node-seconds without a job among the fixed nodes, and those beyond the fixed ones."""
    events: list[tuple[Decimal, int]] = [(period_s, 0)]
    for stays in nodes:
        for start_s, end_s in _merged(stays):
            events += [(start_s, 1), (end_s, -1)]
    idle_s = extra_s = before = _ZERO
    busy = 0
    for moment, change in sorted(events):
        idle_s += max(0, min_nodes - busy) * (moment - before)
        extra_s += max(0, busy - min_nodes) * (moment - before)
        before, busy = moment, busy + change
    return idle_s, extra_s


def _merged(stays: Sequence[_Stay]) -> list[tuple[Decimal, Decimal]]:
    """When any job was on the node."""
    merged: list[tuple[Decimal, Decimal]] = []
    for stay in sorted(stays, key=lambda each: each.start_s):
        if merged and stay.start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stay.end_s))
        else:
            merged.append((stay.start_s, stay.end_s))
    return merged


def _job(
    index: int,
    use: JobUse,
    rates: RunRates,
    job_seconds: Mapping[tuple[int, str], Decimal],
    since: datetime,
    until: datetime,
) -> JobSpend:
    usd: Decimal | None = _ZERO
    node_hours = _ZERO
    for name, rate in rates.node_usd_per_hour.items():
        hours = job_seconds.get((index, name), _ZERO) / _SECONDS_PER_HOUR
        node_hours += hours
        if hours:
            usd = None if usd is None or rate is None else usd + rate * hours
    if any(_nodeset(node) not in rates.node_usd_per_hour for run in use.runs for node in run.nodes):
        usd = None
    is_whole = use.is_finished and all(
        run.started_at >= since and run.ended_at is not None and run.ended_at <= until
        for run in use.runs
    )
    return JobSpend(use=use, node_hours=node_hours, nodes_usd=usd, is_whole=is_whole)


def _dominant_share(use: JobUse, worker: WorkerSpec) -> Decimal:
    """The larger of the job's shares of a node's CPUs and GPUs; above 0, so that all pay."""
    gpus, vcpus = num_gpus(worker), num_vcpus(worker)
    return max(
        Decimal(use.gpus_per_node) / gpus if gpus else _ZERO,
        Decimal(max(1, use.cpus_per_node)) / max(1, vcpus),
    )


def _nodeset(node: str) -> str:
    """Slurm calls the nodes of a nodeset `<name>-<ordinal>`."""
    return node.rpartition("-")[0]


def _seconds(span: timedelta) -> Decimal:
    return Decimal(span // timedelta(microseconds=1)) / 1_000_000
