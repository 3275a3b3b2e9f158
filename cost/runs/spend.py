"""What ran and what it cost, from accounting x prices; beside forecasts, padding and the budget.

A node belongs to the jobs on it: one job alone pays the whole node, jobs that share one split it by
their dominant share (CPUs or GPUs), and a node without a job is idle. Jobs, idle nodes, control
plane and storage add up to the bill of the period. What a budget has left is budget.py's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from cost.report.layout import (
    Format,
    Report,
    Table,
    exact_money,
    headed,
    money,
    number,
    picked,
    render_report,
    rounded,
    usd_text,
)
from cost.resources.estimate import Estimate
from cost.runs.ledger import (
    AccountedJob,
    Entry,
    OverrideEntry,
    actuals,
    forecasts,
)
from stacks.machines import nodeset_of, share_of_node

if TYPE_CHECKING:
    from cost.runs.budget import MonthBudget

_ZERO: Final = Decimal(0)
_SECONDS_PER_HOUR: Final = Decimal(3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUse(AccountedJob):
    """One job, ended or not."""

    is_finished: bool
    told_by: str = ""
    """The member whose own word it is; empty where Slurm or this machine's ledger knows it."""
    limit_s: int | None = None
    """Seconds of a run after which Slurm ends it; None: never."""
    num_nodes: int = 0
    """Nodes that it asks for, each task of an array; known of the queue alone, as what follows."""
    is_held: bool = False
    """Whether it waits for its user to let it go."""

    @property
    def forecast_key(self) -> tuple[str, str]:
        """Cluster and id under which its submission was forecast: an array has one forecast."""
        return self.cluster, self.array_id or self.job_id

    def end_at_most(self, began: datetime, latest: datetime) -> datetime:
        """When a run that began then has ended: at its time limit, or at `latest` before that."""
        if self.limit_s is None or self.limit_s >= (latest - began).total_seconds():
            return latest
        return began + timedelta(seconds=self.limit_s)


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
    forecast_usd: Decimal | None = None
    """US dollars of its nodes as forecast at submission; None where nothing was."""
    padding_usd: Decimal | None = None
    """The part of its US dollars that went into padding; None where it was not measured."""

    @property
    def variance(self) -> Decimal | None:
        """(actual - forecast) / forecast of a job that ended inside the period; None else."""
        if self.nodes_usd is None or not self.forecast_usd or not self.is_whole:
            return None
        return (self.nodes_usd - self.forecast_usd) / self.forecast_usd


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
    heading: str | None = None
    overrides: tuple[OverrideEntry, ...] = ()
    """Submissions over the budget inside the period."""
    budget: MonthBudget | None = None
    notes: tuple[str, ...] = ()

    @property
    def padding_usd(self) -> Decimal | None:
        """US dollars of padding over all jobs that measured it; None when none did."""
        known = [job.padding_usd for job in self.jobs if job.padding_usd is not None]
        return sum(known, _ZERO) if known else None

    @property
    def jobs_usd(self) -> Decimal:
        """US dollars of all jobs whose nodes have a price."""
        return total_usd(self.jobs)

    @property
    def told_twice_usd(self) -> Decimal:
        """Of `jobs_usd` what members tell of hours that others' jobs pay too: it is in no bill."""
        rest_usd = self.idle_usd + self.control_plane_usd + self.storage_usd - self.bill_usd
        return max(_ZERO, rounded(self.jobs_usd + rest_usd, Decimal("0.000001")))

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
    told_by: str
    weight: Decimal


def spend(
    rates: Estimate,
    uses: Sequence[JobUse],
    *,
    since: datetime,
    until: datetime,
    entries: Sequence[Entry] = (),
    budget: MonthBudget | None = None,
    notes: Sequence[str] = (),
) -> Spend:
    """The stack's US dollars over the period; jobs in the order of `uses`.

    `entries`: the ledger, of which each job has its forecast and its padding.
    """
    # Of a cluster that others run the rest of a node is theirs, and so is a node without our jobs.
    is_attached = rates.spec.attached is not None
    least_weight = Decimal(1) if is_attached else _ZERO
    stays, foreign = _stays(rates, uses, since, until)
    period_s = span_s(until - since)
    seconds: list[dict[str, Decimal]] = [defaultdict(Decimal) for _ in uses]
    idle_usd = idle_hours = extra_usd = extra_disk_usd = _ZERO
    for worker in rates.spec.nodes.workers:
        name = worker.name
        nodes = [stays[node] for node in sorted(stays) if nodeset_of(rates.spec, node) == name]
        for node in nodes:
            for job, of_node in _shared(node, least_weight):
                seconds[job][name] += of_node
        idle_s, extra_s = _idle_and_extra(nodes, rates.least_nodes(worker), period_s)
        rate = rates.node_usd_per_hour[name] or _ZERO
        idle_hours += idle_s / _SECONDS_PER_HOUR
        idle_usd += rate * idle_s / _SECONDS_PER_HOUR
        extra_usd += _ZERO if is_attached else rate * extra_s / _SECONDS_PER_HOUR
        extra_disk_usd += rates.disk_usd_per_hour[name] * extra_s / _SECONDS_PER_HOUR
    hours = period_s / _SECONDS_PER_HOUR
    expected, ended = forecasts(entries), actuals(entries)
    jobs: list[JobSpend] = []
    for use, of_job in zip(uses, seconds, strict=True):
        forecast = expected.get(use.forecast_key)
        actual = ended.get((use.cluster, use.job_id))
        padding = None if actual is None else actual.padding_percent
        usd = _nodes_usd(use, of_job, rates)
        jobs.append(
            JobSpend(
                use=use,
                node_hours=sum((each / _SECONDS_PER_HOUR for each in of_job.values()), _ZERO),
                nodes_usd=usd,
                is_whole=use.is_finished
                and all(
                    run.started_at >= since and run.ended_at is not None and run.ended_at <= until
                    for run in use.runs
                ),
                forecast_usd=None if forecast is None else forecast.usd_per_task,
                padding_usd=None if padding is None or usd is None else usd * padding / 100,
            )
        )
    of_jobs_usd = total_usd(jobs) if is_attached else _ZERO
    return Spend(
        stack_name=rates.spec.name,
        since=since,
        until=until,
        jobs=tuple(jobs),
        idle_usd=idle_usd,
        idle_node_hours=idle_hours,
        control_plane_usd=rates.control_plane_usd_per_hour * hours,
        storage_usd=rates.storage_usd_per_hour * hours + extra_disk_usd,
        extra_nodes_usd=extra_usd,
        extra_disks_usd=extra_disk_usd,
        bill_usd=rates.total.hourly_low_usd * hours + extra_usd + extra_disk_usd + of_jobs_usd,
        is_lower_bound=rates.total.is_lower_bound or bool(foreign),
        foreign_nodes=foreign,
        heading=rates.spec.bill_heading,
        overrides=tuple(
            entry
            for entry in entries
            if isinstance(entry, OverrideEntry) and since <= entry.at <= until
        ),
        budget=budget,
        notes=tuple(notes),
    )


def total_usd(jobs: Iterable[JobSpend]) -> Decimal:
    """US dollars of the jobs whose nodes have a price."""
    return sum((job.nodes_usd or _ZERO for job in jobs), _ZERO)


def grouped(jobs: Sequence[JobSpend], key: str) -> dict[str, tuple[JobSpend, ...]]:
    """Jobs by user, partition or another field; the dearest group first, equal ones by name."""
    groups: dict[str, list[JobSpend]] = defaultdict(list)
    for job in jobs:
        groups[getattr(job.use, key)].append(job)
    order = sorted(groups, key=lambda name: (-total_usd(groups[name]), name))
    return {name: tuple(groups[name]) for name in order}


def _stays(
    rates: Estimate, uses: Sequence[JobUse], since: datetime, until: datetime
) -> tuple[dict[str, list[_Stay]], tuple[str, ...]]:
    """Stays by node, in seconds from `since`, and nodes that no nodeset declares."""
    workers = {worker.name: worker for worker in rates.spec.nodes.workers}
    stays: dict[str, list[_Stay]] = defaultdict(list)
    foreign: set[str] = set()
    for index, use in enumerate(uses):
        gpus, cpus = use.gpus_per_node, use.cpus_per_node
        for run in use.runs:
            start, end = max(run.started_at, since), min(run.ended_at or until, until)
            if end <= start:
                continue
            for node in run.nodes:
                worker = workers.get(nodeset_of(rates.spec, node))
                if worker is None:
                    foreign.add(node)
                    continue
                stays[node].append(
                    _Stay(
                        start_s=span_s(start - since),
                        end_s=span_s(end - since),
                        job=index,
                        told_by=use.told_by,
                        weight=share_of_node(rates.spec, use.partition, worker, gpus, cpus),
                    )
                )
    return stays, tuple(sorted(foreign))


def _shared(stays: Sequence[_Stay], least_weight: Decimal) -> Iterable[tuple[int, Decimal]]:
    """(job, seconds of the node) for each stretch in which the same jobs are on one node.

    `least_weight`: of all of them together; what they do not have of it is nobody's here. A
    member's word changes what the own jobs cost alone.
    """
    events = sorted(
        (moment, is_end, index)
        for index, stay in enumerate(stays)
        for moment, is_end in ((stay.start_s, False), (stay.end_s, True))
    )
    active: dict[int, _Stay] = {}
    before = _ZERO
    for moment, is_end, index in events:
        weights: dict[str, Decimal] = defaultdict(Decimal)
        for stay in active.values():
            weights[stay.told_by] += stay.weight
        for stay in active.values() if moment > before else ():
            seen = weights[""] if stay.told_by else _ZERO
            of_all = max(least_weight, seen + weights[stay.told_by])
            yield stay.job, (moment - before) * stay.weight / of_all
        before = moment
        if is_end:
            del active[index]
        else:
            active[index] = stays[index]


def _idle_and_extra(
    nodes: Sequence[Sequence[_Stay]], min_nodes: int, period_s: Decimal
) -> tuple[Decimal, Decimal]:
    """Node-seconds without a job among the fixed nodes, and those beyond the fixed ones."""
    events = [(period_s, 0, 0)]
    for node, stays in enumerate(nodes):
        for stay in stays:
            events += [(stay.start_s, 1, node), (stay.end_s, -1, node)]
    idle_s = extra_s = before = _ZERO
    num_jobs = Counter[int]()
    for moment, change, node in sorted(events):
        busy = len(num_jobs)
        idle_s += max(0, min_nodes - busy) * (moment - before)
        extra_s += max(0, busy - min_nodes) * (moment - before)
        before = moment
        num_jobs[node] += change
        if not num_jobs[node]:
            del num_jobs[node]
    return idle_s, extra_s


def _nodes_usd(use: JobUse, seconds: Mapping[str, Decimal], rates: Estimate) -> Decimal | None:
    """US dollars of these seconds of nodes, by nodeset; None when one has no price."""
    nodes = (node for run in use.runs for node in run.nodes)
    if any(nodeset_of(rates.spec, node) not in rates.node_usd_per_hour for node in nodes):
        return None
    usd = _ZERO
    for name, of_nodeset in seconds.items():
        rate = rates.node_usd_per_hour[name]
        if rate is None and of_nodeset:
            return None
        usd += (rate or _ZERO) * (of_nodeset / _SECONDS_PER_HOUR)
    return usd


def span_s(span: timedelta) -> Decimal:
    return Decimal(span // timedelta(microseconds=1)) / 1_000_000


class By(StrEnum):
    """What spend can be summed by; fields of `JobUse` and `Charge`."""

    USER = "user"
    ACCOUNT = "account"
    JOB = "job"


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """First moment of the calendar month, and of the next one."""
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


SCHEMA_VERSION: Final = 1
_PLAIN_JOB: Final = (
    "use.job use.job_id use.user use.account use.partition use.state node_hours nodes_usd "
    "forecast_usd variance padding_usd"
)
_CSV_COLUMNS: Final = (
    *("stack", "since", "until", "kind", "name", "job_id", "user", "account", "partition"),
    *("state", "node_hours", "nodes_usd", "forecast_usd", "padding_usd"),
)


def render_spend(spend: Spend, format: Format = Format.TABLE, by: By | None = None) -> str:
    """The spend in the format, ending in a newline; `by`: the sums of its jobs alone."""
    found = Report(heading=spend.heading, notes=tuple(_notes(spend)))
    if by is not None:
        table, sums = _sums(spend, by)
        found = replace(
            found,
            tables=(table,),
            data=lambda: {**_plain_head(spend), "by": by.value, "groups": sums},
            rows=lambda: headed(sums),
        )
        return render_report(found, format)
    tables = [_where(spend)]
    if spend.jobs:
        tables += [_jobs(spend), _groups("user", spend), _groups("partition", spend)]
    found = replace(
        found,
        tables=tuple(tables),
        data=lambda: _plain(spend),
        rows=lambda: _csv_rows(spend),
    )
    return render_report(found, format)


def _sums(spend: Spend, by: By) -> tuple[Table, list[dict[str, object]]]:
    """A row for each user, account or job name: jobs of the period, and what is reserved now."""
    jobs, month = grouped(spend.jobs, by), spend.budget
    names = list(jobs)
    if month is not None:
        others = {getattr(each, by) for each in month.charges if not each.is_spent}
        names += sorted(others - jobs.keys())
    found = [
        (name, jobs.get(name, ()), None if month is None else month.reserved_by(by, name))
        for name in names
    ]
    table = Table(
        title=f"Jobs by {by}",
        headings=(by.capitalize(), "Jobs", "Node-hours", "USD", "Share", "Reserved"),
        rows=tuple(
            (name or "-", *_group_cells(own, spend), "" if usd is None else usd_text(usd))
            for name, own, usd in found
        ),
    )
    return table, [
        {
            by.value: name,
            "num_jobs": len(own),
            "node_hours": number(sum((job.node_hours for job in own), _ZERO)),
            "nodes_usd": exact_money(total_usd(own)),
            "num_unpriced": sum(job.nodes_usd is None for job in own),
            "reserved_usd": exact_money(usd),
        }
        for name, own, usd in found
    ]


def parts(spend: Spend) -> tuple[tuple[str, Decimal], ...]:
    """What the bill of the period is made of; the parts add up to `bill_usd`."""
    twice_usd = spend.told_twice_usd
    return (
        ("jobs", spend.jobs_usd),
        ("idle workers", spend.idle_usd),
        ("control plane", spend.control_plane_usd),
        ("storage", spend.storage_usd),
        *([("told twice", -twice_usd)] if twice_usd else []),
    )


def _usd_of(jobs: Sequence[JobSpend]) -> str:
    """Their sum; one without a price makes it a least, and none with a price leaves it unknown."""
    known = [job for job in jobs if job.nodes_usd is not None]
    text = usd_text(total_usd(known) if known or not jobs else None)
    return f"{text} at least" if 0 < len(known) < len(jobs) else text


def _where(spend: Spend) -> Table:
    of_jobs = {"jobs": _usd_of(spend.jobs)}
    bound = ", at least" if spend.is_lower_bound else ""
    return Table(
        title=f"Spend of {spend.stack_name}, {spend.since:%Y-%m-%d %H:%M} to "
        f"{spend.until:%Y-%m-%d %H:%M} UTC (USD without tax)",
        headings=("What", "USD", "Share"),
        rows=(
            *(
                (name, of_jobs.get(name, usd_text(usd)), _share(usd, spend.bill_usd))
                for name, usd in parts(spend)
            ),
            (f"bill of the period{bound}", usd_text(spend.bill_usd), ""),
        ),
    )


def _jobs(spend: Spend) -> Table:
    return Table(
        title="Jobs (own nodes)",
        headings=(
            "Job", "Id", "User", "State", "Node-hours", "USD", "Forecast", "Against it", "Padding"
        ),
        rows=tuple(map(_job_row, spend.jobs)),
        num_text_columns=4,
    )  # fmt: skip


def _job_row(job: JobSpend) -> tuple[str, ...]:
    use, variance = job.use, job.variance
    return (
        use.job,
        use.job_id,
        use.user,
        use.state,
        f"{job.node_hours:,.3f}",
        usd_text(job.nodes_usd),
        usd_text(job.forecast_usd),
        "" if variance is None else f"{100 * variance:+.1f} %",
        "" if job.padding_usd is None else usd_text(job.padding_usd),
    )


def _groups(key: str, spend: Spend) -> Table:
    name = key.capitalize()
    return Table(
        title=f"{name}s",
        headings=(name, "Jobs", "Node-hours", "USD", "Share of jobs"),
        rows=tuple(
            (name, *_group_cells(jobs, spend)) for name, jobs in grouped(spend.jobs, key).items()
        ),
    )


def _group_cells(jobs: Sequence[JobSpend], spend: Spend) -> tuple[str, ...]:
    """Number, node-hours, US dollars and their share of those of all jobs."""
    hours = f"{sum((job.node_hours for job in jobs), _ZERO):,.3f}"
    return (str(len(jobs)), hours, _usd_of(jobs), _share(total_usd(jobs), spend.jobs_usd))


def _notes(spend: Spend) -> list[str]:
    notes = list(spend.notes)
    if spend.idle_share is not None:
        notes.append(
            f"Workers stood idle for {spend.idle_node_hours:,.2f} node-hours, "
            f"{100 * spend.idle_share:.1f} % of what they cost. The bill takes the stack as "
            "declared now, and as if it had been up in all of the period."
        )
    if spend.padding_usd is not None:
        notes.append(f"{usd_text(spend.padding_usd)} went into padding, as run records say.")
    if spend.foreign_nodes:
        notes.append(
            f"Not priced: nodes {', '.join(spend.foreign_nodes)} belong to no declared nodeset."
        )
    notes += [
        f"{entry.at:%Y-%m-%d %H:%M}: {entry.user} submitted {entry.job} (job {entry.job_id}) of "
        f"{usd_text(entry.forecast_usd)} with {usd_text(entry.left_usd)} left of "
        f"{usd_text(entry.budget_usd)}."
        for entry in spend.overrides
    ]
    return notes if spend.budget is None else [*notes, f"{str(spend.budget).capitalize()}."]


def _plain_head(spend: Spend) -> dict[str, object]:
    paths = "stack=stack_name since until bill_usd is_lower_bound jobs_usd"
    budget = spend.budget
    return {
        "schema_version": SCHEMA_VERSION,
        **picked(spend, paths),
        "budget": budget
        and {
            **picked(budget, "month budget_usd spent_usd reserved_usd left_usd num_unknown"),
            "budget_usd": money(budget.budget_usd),
        },
        **picked(spend, "notes"),
    }


def _plain(spend: Spend) -> dict[str, object]:
    paths = "idle_usd idle_node_hours idle_share control_plane_usd storage_usd told_twice_usd"
    of_override = "at job job_id user forecast_usd left_usd"
    return {
        **_plain_head(spend),
        **picked(spend, f"{paths} padding_usd"),
        "jobs": [picked(job, _PLAIN_JOB) for job in spend.jobs],
        **{f"{key}s": _plain_groups(spend, key) for key in ("user", "account", "partition")},
        "overrides": [picked(entry, of_override) for entry in spend.overrides],
    }


def _plain_groups(spend: Spend, key: str) -> list[dict[str, object]]:
    return [
        {"name": name, "num_jobs": len(jobs), "nodes_usd": exact_money(total_usd(jobs))}
        for name, jobs in grouped(spend.jobs, key).items()
    ]


def _csv_rows(spend: Spend) -> Iterator[Sequence[object]]:
    yield _CSV_COLUMNS
    period = (spend.stack_name, spend.since.isoformat(), spend.until.isoformat())
    for job in spend.jobs:
        values = picked(job, _PLAIN_JOB)
        del values["variance"]
        yield (*period, "job", *values.values())
    for name, usd in parts(spend)[1:]:
        yield (*period, "part", name, *[None] * 6, exact_money(usd), None, None)


def _share(usd: Decimal, whole: Decimal) -> str:
    return "" if whole == 0 else f"{100 * usd / whole:.1f} %"
