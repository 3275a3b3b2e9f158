"""What runs cost, as parts of the bill: forecasts, and what preemption adds to them.

Also what a pipeline costs: every job that `jobs[].after` leads to, once, and by its schedule a
month; two sums, what is forecast and what the time limits allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from cost.chat.unit_costs import Amount, BillPart, UnitCosts, listed
from cost.prices.book import HOURS_PER_MONTH
from cost.report.layout import UNKNOWN, money, number, picked, small_usd_text
from cost.resources.estimate import Estimate, known_sum
from cost.run_record import RunRecord
from cost.runs.forecast import (
    Disturbance,
    Forecast,
    UnknownRun,
    disturbance,
    forecast,
    forecasts,
    limit_hours,
)
from cost.traced import named
from stacks.schedule import parse_cron, pipeline, pipeline_ends
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec

SLOWDOWN_SOURCE: Final = "J. T. Daly, FGCS 22(3), 2006, equation 20"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionCost:
    """One job on preemptible nodes against the same on on-demand nodes."""

    job: str
    losses: Disturbance
    on_demand_usd_per_hour: Decimal | None
    """All nodes of the job, for an hour of useful work; None when the price is not known."""
    preemptible_usd_per_hour: Decimal | None
    """The same with the expected losses; None when not known, or when it would never end."""
    pays_up_to: Decimal | None
    """Preemptions a node-day up to which preemptible is cheaper; None: not known, or always."""
    reason: str | None
    """Why a figure is missing."""


def runs(units: UnitCosts) -> Iterable[BillPart]:
    """Parts `runs` and `preemption`; none where nothing trains, or no preemption is declared."""
    found = forecasts(units.estimate, units.records)
    yield from listed(
        "runs",
        found,
        title="Cost per run (own nodes; with their share of the rest of the cluster)",
        headings=("Job", "Nodes", "Tokens", "Hours", "Own nodes", "Cluster share"),
        row=_run_row,
        plain=plain_run,
        notes=(note for each in found for note in run_notes(each)),
        amounts=(_amount(each, units.spec) for each in found),
    )
    costs = preemption_costs(units)
    yield from listed(
        "preemption",
        costs,
        title="Preemptible against on-demand nodes (US dollars for an hour of useful work)",
        headings=(
            *("Job", "Checkpoint every", "Young", "Slowdown", "On-demand"),
            *("Preemptible", "Pays up to"),
        ),
        row=_preemption_row,
        plain=_plain_preemption,
        notes=(note for each in costs for note in _preemption_notes(each)),
    )


def preemption_costs(units: UnitCosts) -> tuple[PreemptionCost, ...]:
    """One for each job that trains on a stack that declares its preemption."""
    spec, rates = units.spec, units.estimate
    if spec.preemption is None:
        return ()
    named = {each.job for each in spec.runs}
    found: list[PreemptionCost] = []
    for job in spec.jobs:
        worker = rates.dearest(job)
        if worker is None or (job.name not in named and job.module != "workloads.train"):
            continue
        losses = disturbance(spec.preemption, job, worker, units.records)
        found.append(_preemption_cost(job, worker, losses, rates))
    return tuple(found)


def _preemption_cost(
    job: JobSpec, worker: WorkerSpec, losses: Disturbance, rates: Estimate
) -> PreemptionCost:
    on_demand = rates.billed_as(worker, Billing.ON_DEMAND)
    preemptible = rates.billed_as(worker, Billing.PREEMPTIBLE)
    slowdown = losses.slowdown
    reasons = [each for each in (on_demand, preemptible) if isinstance(each, str)]
    pays_up_to = None
    if not isinstance(on_demand, str) and not isinstance(preemptible, str) and preemptible > 0:
        pays_up_to = losses.pays_up_to(on_demand / preemptible)
    if slowdown is None:
        reasons.append("at this rate the run would never end on preemptible nodes")
    return PreemptionCost(
        job=job.name,
        losses=losses,
        on_demand_usd_per_hour=None if isinstance(on_demand, str) else on_demand * job.nodes,
        preemptible_usd_per_hour=None
        if isinstance(preemptible, str) or slowdown is None
        else preemptible
        * job.nodes
        * named(slowdown.factor, "slowdown", SLOWDOWN_SOURCE, beside=preemptible),
        pays_up_to=pays_up_to,
        reason="; ".join(reasons) or None,
    )


def run_notes(run: Forecast | UnknownRun) -> tuple[str, ...]:
    """What the run's figures rest on, a sentence each."""
    if isinstance(run, UnknownRun):
        usd = run.at_most_usd
        most = "" if usd is None else f" Its time limit allows at most {small_usd_text(usd)}."
        return (f"Run of {run.job}: {run}.{most}",)
    losses = run.disturbance
    expected = "" if losses is None else f" {run.busy_hours:.2f} hours without preemptions."
    return (
        f"Run of {run.job}: {run.num_tokens:,.0f} tokens at {run.speed}.{expected}",
        *(f"Run of {run.job}: {note}." for note in run.notes),
    )


def run_lines(run: Forecast | UnknownRun) -> tuple[str, ...]:
    """The run for `soperator submit`: hours and US dollars first, then what they rest on."""
    if isinstance(run, UnknownRun):
        return run_notes(run)
    usd = "price not known"
    if run.nodes_usd is not None:
        usd = (
            f"{small_usd_text(run.nodes_usd)} of its own nodes "
            f"({small_usd_text(run.cluster_share_usd)} with their share of the cluster)"
        )
    where = f"{run.num_nodes} x {run.worker.preset}"
    return (f"Forecast of {run.job}: {run.hours:,.2f} h on {where}, {usd}.", *run_notes(run))


def _run_row(run: Forecast | UnknownRun) -> tuple[str, ...]:
    if isinstance(run, UnknownRun):
        return (run.job, str(run.num_nodes), *(UNKNOWN for _ in range(4)))
    return (
        run.job,
        str(run.num_nodes),
        f"{run.num_tokens:,.0f}",
        f"{run.hours:,.2f}",
        small_usd_text(run.nodes_usd),
        small_usd_text(run.cluster_share_usd),
    )


def _amount(run: Forecast | UnknownRun, spec: StackSpec) -> Amount:
    is_known = isinstance(run, Forecast)
    job = f"jobs[{run.job}]"
    partition = next((each.partition for each in spec.jobs if each.name == run.job), "")
    return Amount(
        name=f"per_run_usd[{run.job}]",
        label=f"$/run of {run.job}",
        usd=run.nodes_usd if is_known else None,
        basis=str(run.speed) if is_known else str(run),
        keys=(
            *(f"{job}.{key}" for key in ("module", "recipe", "nodes", "gpus_per_node")),
            f"{job}.partition",
            f"slurm.partitions[{partition}].nodesets",
            f"runs[{run.job}]",
            "preemption",
        ),
    )


def plain_run(run: Forecast | UnknownRun) -> dict[str, object]:
    """The run as JSON values; money is text."""
    if isinstance(run, UnknownRun):
        return {
            **picked(run, "job num_nodes"),
            "hours": None,
            "nodes_usd": None,
            **picked(run, "reason fix"),
        }
    speed = "train_tokens_per_s=speed.tokens_per_s basis=speed"
    return picked(run, f"job num_nodes num_tokens {speed} hours nodes_usd cluster_share_usd notes")


def _preemption_row(cost: PreemptionCost) -> tuple[str, ...]:
    losses, slowdown = cost.losses, cost.losses.slowdown
    pays_up_to = "any rate" if cost.reason is None else UNKNOWN
    if cost.pays_up_to is not None:
        pays_up_to = f"{cost.pays_up_to:.2f} /node-day"
    return (
        cost.job,
        "never" if losses.interval_s is None else _minutes(losses.interval_s),
        "never" if losses.young_s is None else _minutes(losses.young_s),
        "endless" if slowdown is None else f"{slowdown.factor:.3f} x",
        small_usd_text(cost.on_demand_usd_per_hour),
        small_usd_text(cost.preemptible_usd_per_hour),
        pays_up_to,
    )


def _preemption_notes(cost: PreemptionCost) -> list[str]:
    losses, stall = cost.losses, cost.losses.stall
    origin = "assumed" if stall.measured_on is None else f"measured on {stall.measured_on}"
    slowdown = losses.slowdown
    lost = ""
    if slowdown is not None:
        lost = (
            f" Lost: {100 * slowdown.checkpoint:.2f} % to checkpoints, "
            f"{100 * slowdown.lost_work:.2f} % to work done again, "
            f"{100 * slowdown.restart:.2f} % to restarts."
        )
    rests_on = (
        f"Preemption of {cost.job}: {number(losses.preemptions_per_node_day)} a node-day on "
        f"{losses.num_nodes} nodes, restart {number(losses.restart_s)} s: "
        f"{losses.source}; checkpoint stall {number(stall.seconds)} s, {origin}: {stall.source}."
        f"{lost} Checkpoint interval: Daly 2006, beside Young 1974."
    )
    reason = f"Preemption of {cost.job}: NOT KNOWN: {cost.reason}."
    return [rests_on] if cost.reason is None else [rests_on, reason]


def _plain_preemption(cost: PreemptionCost) -> dict[str, object]:
    paths = (
        "job losses.preemptions_per_node_day checkpoint_stall_s=losses.stall.seconds "
        "checkpoint_stall_measured_on=losses.stall.measured_on losses.restart_s "
        "young_interval_s=losses.young_s daly_interval_s=losses.interval_s "
        "slowdown=losses.slowdown.factor on_demand_usd_per_useful_hour=on_demand_usd_per_hour "
        "preemptible_usd_per_useful_hour=preemptible_usd_per_hour "
        "pays_up_to_per_node_day=pays_up_to reason"
    )
    return picked(cost, paths)


def _minutes(seconds: Decimal) -> str:
    return f"{seconds / 60:,.1f} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """One job of a pipeline."""

    job: JobSpec
    run: Forecast | UnknownRun
    most_hours: Decimal
    """Its time limit."""
    most_usd: Decimal | None
    """US dollars of its nodes up to its time limit; None when their price is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineCost:
    """A pipeline, called by the job that it ends with."""

    name: str
    steps: tuple[PipelineStep, ...]
    """Each after those that it needs."""

    @property
    def most_hours(self) -> Decimal:
        """The longest way through it, every job up to its time limit; waiting is not counted."""
        ends: dict[str, Decimal] = {}
        for step in self.steps:
            before = [ends[name] for name in step.job.after if name in ends]
            ends[step.job.name] = max(before, default=Decimal(0)) + step.most_hours
        return max(ends.values())

    @property
    def most_usd(self) -> Decimal | None:
        """US dollars of all nodes, every job up to its time limit; None when one has no price."""
        return known_sum(step.most_usd for step in self.steps)

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """Those of its jobs that have one."""
        return tuple(step.run for step in self.steps if isinstance(step.run, Forecast))

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars of the jobs that are forecast; None without such a job, or without prices."""
        return known_sum(run.nodes_usd for run in self.forecasts) if self.forecasts else None

    @property
    def order(self) -> str:
        """Its jobs as people read them."""
        return " -> ".join(step.job.name for step in self.steps)


def pipeline_cost(
    jobs: Sequence[JobSpec],
    rates: Estimate,
    records: Sequence[RunRecord],
    sets: Mapping[str, Sequence[str]] | None = None,
) -> PipelineCost:
    """The pipeline of these jobs, in order; `sets` are the settings of one submission, by job."""
    steps = tuple(
        PipelineStep(
            job=job,
            run=forecast(job, rates, records, (sets or {}).get(job.name, ())),
            most_hours=limit_hours(job),
            most_usd=rates.job_usd(job, limit_hours(job)),
        )
        for job in jobs
    )
    return PipelineCost(name=jobs[-1].name, steps=steps)


def pipelines_part(units: UnitCosts) -> Iterable[BillPart]:
    """Part `pipelines`; none where no job needs another."""
    found = [
        pipeline_cost(pipeline(units.spec, job.name), units.estimate, units.records)
        for job in pipeline_ends(units.spec)
    ]
    return listed(
        "pipelines",
        found,
        title="Cost per pipeline (own nodes; jobs one after the other, without waiting)",
        headings=("Pipeline", "Jobs", "Hours at most", "At most", "Forecast of", "Forecast"),
        row=lambda cost: (
            cost.order,
            str(len(cost.steps)),
            f"{cost.most_hours:,.2f}",
            small_usd_text(cost.most_usd),
            f"{len(cost.forecasts)} of {len(cost.steps)}",
            small_usd_text(cost.forecast_usd),
        ),
        plain=plain_pipeline,
        notes=("Pipelines: at most is every job up to its time limit.",),
    )


def pipeline_line(cost: PipelineCost) -> str:
    """The whole pipeline for `soperator submit`, after the lines of its jobs."""
    known = f"{len(cost.forecasts)} of {len(cost.steps)} jobs are forecast"
    if cost.forecasts:
        hours = sum((run.hours for run in cost.forecasts), Decimal(0))
        known += f": {hours:,.2f} h and {small_usd_text(cost.forecast_usd)} together"
    return (
        f"Pipeline {cost.order}: at most {cost.most_hours:,.2f} h and "
        f"{small_usd_text(cost.most_usd)} of its own nodes, by the time limits; {known}."
    )


def plain_pipeline(cost: PipelineCost) -> dict[str, object]:
    """The pipeline as JSON values; money is text."""
    return {
        "name": cost.name,
        "jobs": [step.job.name for step in cost.steps],
        **picked(cost, "most_hours most_usd"),
        "num_forecast": len(cost.forecasts),
        **picked(cost, "forecast_usd"),
    }


NUM_NEXT: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCost:
    """A scheduled job and what it needs, over a month."""

    schedule: str
    once: PipelineCost
    times_per_month: Decimal

    @property
    def most_usd(self) -> Decimal | None:
        """US dollars a month of all nodes, every job up to its time limit."""
        steps = [(step.most_usd, step.most_hours) for step in self.once.steps]
        return known_sum(None if usd is None else usd * self._times(hours) for usd, hours in steps)

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars a month of the jobs that are forecast."""
        runs = [(run.nodes_usd, run.hours) for run in self.once.forecasts]
        usd = [None if usd is None else usd * self._times(hours) for usd, hours in runs]
        return known_sum(usd) if usd else None

    @property
    def most_hours(self) -> Decimal:
        """Hours a month that it may hold its nodes."""
        return min(self.once.most_hours * self.times_per_month, HOURS_PER_MONTH)

    def _times(self, hours: Decimal) -> Decimal:
        """Times a month that one job can come: it keeps the next one out while it is not over."""
        return min(self.times_per_month, HOURS_PER_MONTH / hours) if hours else self.times_per_month


def schedule_cost(once: PipelineCost) -> ScheduleCost | None:
    """The month of the pipeline's last job; None where that one is not scheduled."""
    schedule = once.steps[-1].job.schedule
    if schedule is None:
        return None
    return ScheduleCost(
        schedule=schedule, once=once, times_per_month=parse_cron(schedule).times_per_month
    )


def schedules_part(units: UnitCosts) -> Iterable[BillPart]:
    """Part `schedules`; none where no job is scheduled."""
    spec, rates = units.spec, units.estimate
    jobs = (pipeline(spec, job.name) for job in spec.jobs if job.schedule is not None)
    costs = (schedule_cost(pipeline_cost(each, rates, units.records)) for each in jobs)
    return listed(
        "schedules",
        [cost for cost in costs if cost is not None],
        title="Cost of schedules a month (own nodes)",
        headings=("Schedule", "Times", "Hours at most", "At most", "Forecast"),
        row=lambda cost: (
            f"{cost.schedule}: {cost.once.order}",
            f"{cost.times_per_month:,.1f}",
            f"{cost.most_hours:,.1f}",
            small_usd_text(cost.most_usd),
            small_usd_text(cost.forecast_usd),
        ),
        plain=_plain,
        notes=(
            (
                "Schedules: nodes that stand anyway are in the bill already; this is which part of "
                "them the schedules take, and what nodes that come and go with jobs cost. A run "
                "that is not over keeps the next one out: no job counts for more than a month."
            ),
        ),
    )


def schedule_lines(once: PipelineCost, now: datetime) -> tuple[str, ...]:
    """When the job comes next and what it costs a month; nothing where it is not scheduled."""
    cost = schedule_cost(once)
    if cost is None:
        return ()
    times = parse_cron(cost.schedule).next_times(now, NUM_NEXT)
    shown = ", ".join(f"{moment:%Y-%m-%d %H:%M}" for moment in times)
    return (
        (
            f"Schedule '{cost.schedule}' of {once.name}: next {shown} UTC, where that is the "
            f"cluster's clock; {cost.times_per_month:,.1f} times a month: at most "
            f"{small_usd_text(cost.most_usd)}, {small_usd_text(cost.forecast_usd)} "
            "by forecast, of its own nodes."
        ),
    )


def _plain(cost: ScheduleCost) -> dict[str, object]:
    paths = (
        "times_per_month most_hours_per_month=most_hours most_usd_per_month=most_usd "
        "forecast_usd_per_month=forecast_usd"
    )
    jobs = [step.job.name for step in cost.once.steps]
    return {**picked(cost, "once.name schedule"), "jobs": jobs, **picked(cost, paths, money)}
