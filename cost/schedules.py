"""What a schedule costs a month: a scheduled job with all that it needs, as often as it comes.

Owns the product, the part of the bill and the lines of a dry run. What one time costs is
pipelines.py's; the month has 730 hours, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from cost.layout import UNKNOWN, Table, small_usd_text
from cost.part import Inputs, Part
from cost.pipelines import PipelineCost, pipeline_cost
from cost.price import HOURS_PER_MONTH
from cost.run_rates import run_rates
from cost.summary import money, number
from stacks.cron import parse
from stacks.pipeline import pipeline

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
        schedule=schedule, once=once, times_per_month=parse(schedule).times_per_month
    )


def schedules_part(inputs: Inputs) -> Iterable[Part]:
    """Part `schedules`; none where no job is scheduled."""
    rates = run_rates(inputs.spec, inputs.estimate, inputs.book)
    found: list[ScheduleCost] = []
    for job in inputs.spec.jobs:
        if job.schedule is not None:
            jobs = pipeline(inputs.spec, job.name)
            cost = schedule_cost(pipeline_cost(jobs, rates, inputs.records))
            found += [] if cost is None else [cost]
    if found:
        yield _part(found)


def schedule_lines(once: PipelineCost, now: datetime) -> tuple[str, ...]:
    """When the job comes next and what it costs a month; nothing where it is not scheduled."""
    cost = schedule_cost(once)
    if cost is None:
        return ()
    times = parse(cost.schedule).next_times(now, NUM_NEXT)
    shown = ", ".join(f"{moment:%Y-%m-%d %H:%M}" for moment in times)
    return (
        (
            f"Schedule '{cost.schedule}' of {once.name}: next {shown} UTC, where that is the "
            f"cluster's clock; {cost.times_per_month:,.1f} times a month: at most "
            f"{_usd(cost.most_usd)}, {_usd(cost.forecast_usd)} by forecast, of its own nodes."
        ),
    )


def _part(found: Sequence[ScheduleCost]) -> Part:
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
                        _usd(cost.most_usd),
                        _usd(cost.forecast_usd),
                    )
                    for cost in found
                ),
                num_text_columns=1,
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
        "most_usd_per_month": None if cost.most_usd is None else money(cost.most_usd),
        "forecast_usd_per_month": None if cost.forecast_usd is None else money(cost.forecast_usd),
    }


def _usd(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else small_usd_text(usd)
