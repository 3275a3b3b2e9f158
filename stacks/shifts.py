"""Who holds the nodes of a partition by day and by night, as `jobs[].schedule` and limits say.

Owns the timeline: every scheduled job from each of its times to its time limit, over four weeks.
Prices are cost/runs/searches.py's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from stacks.cron import CronError, parse
from stacks.slurm_spec import JobSpec
from stacks.slurm_time import slurm_seconds
from stacks.spec import StackSpec

NUM_WEEKS: Final = 4
# A Monday. What began in the week before reaches into the first one.
_START: Final = datetime(2026, 1, 5)  # noqa: DTZ001  a schedule has no zone
_BEFORE: Final = _START - timedelta(days=7)
_END: Final = _START + timedelta(weeks=NUM_WEEKS)
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """One scheduled job of a partition."""

    job: JobSpec
    hours_per_week: Decimal
    """Mean hours that it may hold its nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionShifts:
    """The scheduled jobs that share the nodes of one partition."""

    partition: str
    num_nodes: int
    """Nodes that are always there."""
    shifts: tuple[Shift, ...]
    free_node_hours_per_week: Decimal
    """Mean hours of nodes that no schedule holds."""
    clash_hours_per_week: Decimal
    """Mean hours in which the schedules ask for more nodes than there are: one waits."""
    first_clash: datetime | None
    """When that begins for the first time; its weekday and time are what counts."""


def partition_shifts(spec: StackSpec) -> tuple[PartitionShifts, ...]:
    """One for each partition that two or more scheduled jobs share, in declared order."""
    by_partition: dict[str, list[JobSpec]] = defaultdict(list)
    for job in spec.jobs:
        if job.schedule is not None and _is_readable(job):
            by_partition[job.partition].append(job)
    return tuple(_shifts(spec, name, jobs) for name, jobs in by_partition.items() if len(jobs) > 1)


def _is_readable(job: JobSpec) -> bool:
    try:
        parse(job.schedule or "")
    except CronError:
        return False
    return bool(slurm_seconds(job.time_limit))


def _shifts(spec: StackSpec, name: str, jobs: list[JobSpec]) -> PartitionShifts:
    partition = next((each for each in spec.slurm.partitions if each.name == name), None)
    nodesets = () if partition is None else partition.nodesets
    num_nodes = sum(
        worker.min_nodes
        for worker in spec.nodes.workers
        if partition is not None and (not nodesets or worker.name in nodesets)
    )
    changes: dict[datetime, int] = defaultdict(int)
    shifts: list[Shift] = []
    for job in jobs:
        held = timedelta()
        for start, end in _windows(job):
            held += end - start
            changes[start] += job.nodes
            changes[end] -= job.nodes
        shifts.append(Shift(job=job, hours_per_week=_weekly(held)))
    free, clash, first = _sweep(changes, num_nodes)
    return PartitionShifts(
        partition=name,
        num_nodes=num_nodes,
        shifts=tuple(shifts),
        free_node_hours_per_week=free,
        clash_hours_per_week=_weekly(clash),
        first_clash=first,
    )


def _windows(job: JobSpec) -> Iterator[tuple[datetime, datetime]]:
    """From each time of the job to its limit, inside the weeks; a run keeps the next one out."""
    limit = timedelta(seconds=slurm_seconds(job.time_limit) or 0)
    over = _BEFORE
    for moment in parse(job.schedule or "").times(_BEFORE - timedelta(minutes=1)):
        if moment >= _END:
            return
        if moment < over:
            continue
        over = moment + limit
        if over > _START:
            yield max(moment, _START), min(over, _END)


def _sweep(
    changes: dict[datetime, int], num_nodes: int
) -> tuple[Decimal, timedelta, datetime | None]:
    """Free node-hours a week, time with more asked for than there is, and its first moment."""
    asked, free, clash, first = 0, timedelta(), timedelta(), None
    at = _START
    for moment in (*sorted(changes), _END):
        length = moment - at
        free += max(0, num_nodes - asked) * length
        if asked > num_nodes and length:
            clash += length
            first = first or at
        asked += changes.get(moment, 0)
        at = moment
    return _weekly(free), clash, first


def _weekly(length: timedelta) -> Decimal:
    seconds = Decimal(length // timedelta(seconds=1))
    return seconds / Decimal(_HOUR // timedelta(seconds=1)) / NUM_WEEKS
