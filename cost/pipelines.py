"""What a pipeline costs: every job that `jobs[].after` leads to, as one sum of hours and dollars.

Two sums: what is forecast, and what the time limits allow. Owns the sums, the part of the bill and
the lines of `soperator submit --pipeline`. Hours and dollars of one job are forecast.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cost.forecast import SECONDS_PER_HOUR, Forecast, UnknownRun, forecast
from cost.layout import UNKNOWN, Table, small_usd_text
from cost.part import Inputs, Part
from cost.run_rates import RunRates, run_rates
from cost.run_record import RunRecord
from cost.summary import money, number
from stacks.pipeline import pipeline, pipeline_ends
from stacks.slurm_spec import JobSpec
from stacks.slurm_time import slurm_seconds

_TINY = Decimal("0.000001")


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
        return _sum([step.most_usd for step in self.steps])

    @property
    def forecasts(self) -> tuple[Forecast, ...]:
        """Those of its jobs that have one."""
        return tuple(step.run for step in self.steps if isinstance(step.run, Forecast))

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars of the jobs that are forecast; None without such a job, or without prices."""
        return _sum([run.nodes_usd for run in self.forecasts]) if self.forecasts else None

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
                most_usd=None if worker is None else rates.nodes_usd(worker, job.nodes, hours),
            )
        )
    return PipelineCost(name=jobs[-1].name, steps=tuple(steps))


def pipelines_part(inputs: Inputs) -> Iterable[Part]:
    """Part `pipelines`; none where no job needs another."""
    rates = run_rates(inputs.spec, inputs.estimate, inputs.book)
    found = [
        pipeline_cost(pipeline(inputs.spec, job.name), rates, inputs.records)
        for job in pipeline_ends(inputs.spec)
    ]
    if found:
        yield _part(found)


def pipeline_line(cost: PipelineCost) -> str:
    """The whole pipeline for `soperator submit`, after the lines of its jobs."""
    known = f"{len(cost.forecasts)} of {len(cost.steps)} jobs are forecast"
    if cost.forecasts:
        hours = sum((run.hours for run in cost.forecasts), Decimal(0))
        known += f": {hours:,.2f} h and {_usd(cost.forecast_usd)} together"
    return (
        f"Pipeline {cost.order}: at most {cost.most_hours:,.2f} h and {_usd(cost.most_usd)} of "
        f"its own nodes, by the time limits; {known}."
    )


def plain_pipeline(cost: PipelineCost) -> dict[str, object]:
    """The pipeline as JSON values; money is text."""
    return {
        "name": cost.name,
        "jobs": [step.job.name for step in cost.steps],
        "most_hours": number(cost.most_hours),
        "most_usd": _money(cost.most_usd),
        "num_forecast": len(cost.forecasts),
        "forecast_usd": _money(cost.forecast_usd),
    }


def _part(found: Sequence[PipelineCost]) -> Part:
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
                        _usd(cost.most_usd),
                        f"{len(cost.forecasts)} of {len(cost.steps)}",
                        _usd(cost.forecast_usd),
                    )
                    for cost in found
                ),
                num_text_columns=1,
            ),
        ),
        notes=("Pipelines: at most is every job up to its time limit.",),
        plain={"pipelines": [plain_pipeline(cost) for cost in found]},
    )


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [each for each in amounts if each is not None]
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _usd(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else small_usd_text(usd)


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else money(usd, _TINY)
