"""What a pipeline costs: every job that `jobs[].after` leads to, once, and by its schedule a month.

Two sums: what is forecast, and what the time limits allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from cost.chat.unit_costs import Inputs, Part
from cost.prices.price import HOURS_PER_MONTH
from cost.report.layout import Table, exact_money, money, number, small_usd_text
from cost.resources.estimate import RunRates, known_sum
from cost.run_record import RunRecord
from cost.runs.forecast import SECONDS_PER_HOUR, Forecast, UnknownRun, forecast
from stacks.schedule import parse_cron, pipeline, pipeline_ends, slurm_seconds
from stacks.spec.slurm import JobSpec


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
    rates: RunRates,
    records: Sequence[RunRecord],
    sets: Mapping[str, Sequence[str]] | None = None,
) -> PipelineCost:
    """The pipeline of these jobs, in order; `sets` are the settings of one submission, by job."""
    steps: list[PipelineStep] = []
    for job in jobs:
        worker = rates.dearest(job)
        hours = Decimal(slurm_seconds(job.time_limit) or 0) / SECONDS_PER_HOUR
        steps.append(
            PipelineStep(
                job=job,
                run=forecast(job, rates, records, (sets or {}).get(job.name, ())),
                most_hours=hours,
                most_usd=None if worker is None else rates.job_usd(job, worker, hours),
            )
        )
    return PipelineCost(name=jobs[-1].name, steps=tuple(steps))


def pipelines_part(inputs: Inputs) -> Iterable[Part]:
    """Part `pipelines`; none where no job needs another."""
    rates = inputs.rates
    found = [
        pipeline_cost(pipeline(inputs.spec, job.name), rates, inputs.records)
        for job in pipeline_ends(inputs.spec)
    ]
    if found:
        yield _pipeline_part(found)


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
        "most_hours": number(cost.most_hours),
        "most_usd": exact_money(cost.most_usd),
        "num_forecast": len(cost.forecasts),
        "forecast_usd": exact_money(cost.forecast_usd),
    }


def _pipeline_part(found: Sequence[PipelineCost]) -> Part:
    return Part(
        name="pipelines",
        tables=(
            Table(
                title="Cost per pipeline (own nodes; jobs one after the other, without waiting)",
                headings=(
                    "Pipeline",
                    "Jobs",
                    "Hours at most",
                    "At most",
                    "Forecast of",
                    "Forecast",
                ),
                rows=tuple(
                    (
                        cost.order,
                        str(len(cost.steps)),
                        f"{cost.most_hours:,.2f}",
                        small_usd_text(cost.most_usd),
                        f"{len(cost.forecasts)} of {len(cost.steps)}",
                        small_usd_text(cost.forecast_usd),
                    )
                    for cost in found
                ),
            ),
        ),
        notes=("Pipelines: at most is every job up to its time limit.",),
        plain={"pipelines": [plain_pipeline(cost) for cost in found]},
    )


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
        if self.once.most_usd is None:
            return None
        steps = self.once.steps
        usd = [(step.most_usd or Decimal(0)) * self._times(step.most_hours) for step in steps]
        return sum(usd, Decimal(0))

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars a month of the jobs that are forecast."""
        if self.once.forecast_usd is None:
            return None
        runs = self.once.forecasts
        usd = [(run.nodes_usd or Decimal(0)) * self._times(run.hours) for run in runs]
        return sum(usd, Decimal(0))

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


def schedules_part(inputs: Inputs) -> Iterable[Part]:
    """Part `schedules`; none where no job is scheduled."""
    rates = inputs.rates
    found: list[ScheduleCost] = []
    for job in inputs.spec.jobs:
        if job.schedule is not None:
            jobs = pipeline(inputs.spec, job.name)
            cost = schedule_cost(pipeline_cost(jobs, rates, inputs.records))
            found += [] if cost is None else [cost]
    if found:
        yield _schedule_part(found)


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


def _schedule_part(found: Sequence[ScheduleCost]) -> Part:
    return Part(
        name="schedules",
        tables=(
            Table(
                title="Cost of schedules a month (own nodes)",
                headings=("Schedule", "Times", "Hours at most", "At most", "Forecast"),
                rows=tuple(
                    (
                        f"{cost.schedule}: {cost.once.order}",
                        f"{cost.times_per_month:,.1f}",
                        f"{cost.most_hours:,.1f}",
                        small_usd_text(cost.most_usd),
                        small_usd_text(cost.forecast_usd),
                    )
                    for cost in found
                ),
            ),
        ),
        notes=(
            (
                "Schedules: nodes that stand anyway are in the bill already; this is which part of "
                "them the schedules take, and what nodes that come and go with jobs cost. A run "
                "that is not over keeps the next one out: no job counts for more than a month."
            ),
        ),
        plain={"schedules": [_plain(cost) for cost in found]},
    )


def _plain(cost: ScheduleCost) -> dict[str, object]:
    return {
        "name": cost.once.name,
        "schedule": cost.schedule,
        "jobs": [step.job.name for step in cost.once.steps],
        "times_per_month": number(cost.times_per_month),
        "most_hours_per_month": number(cost.most_hours),
        "most_usd_per_month": money(cost.most_usd),
        "forecast_usd_per_month": money(cost.forecast_usd),
    }
