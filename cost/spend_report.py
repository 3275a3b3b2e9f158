"""Spend beside forecasts, padding and budget: spend_report(spend, content, budget, notes).

Owns how actuals are compared. Sums are spend.py's, the budget budget.py's, the layout
spend_table.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cost.budget import JobKey, MonthBudget, actuals, forecasts
from cost.ledger_entries import ActualEntry, Entry, ForecastEntry, OverrideEntry
from cost.spend import JobSpend, Spend


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job with what was expected of it."""

    job: JobSpend
    forecast_usd: Decimal | None
    """US dollars of its nodes as forecast at submission; None where nothing was."""
    padding_usd: Decimal | None
    """The part of its US dollars that went into padding; None where it was not measured."""

    @property
    def variance(self) -> Decimal | None:
        """(actual - forecast) / forecast of a job that ended inside the period; None else."""
        actual_usd, forecast_usd = self.job.nodes_usd, self.forecast_usd
        if actual_usd is None or not forecast_usd or not self.job.is_whole:
            return None
        return (actual_usd - forecast_usd) / forecast_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendReport:
    """What `soperator spend` prints."""

    heading: str | None
    spend: Spend
    rows: tuple[JobRow, ...]
    overrides: tuple[OverrideEntry, ...]
    """Submissions over the budget inside the period."""
    budget: MonthBudget | None
    notes: tuple[str, ...]

    @property
    def padding_usd(self) -> Decimal | None:
        """US dollars of padding over all jobs that measured it; None when none did."""
        known = [row.padding_usd for row in self.rows if row.padding_usd is not None]
        return sum(known, Decimal(0)) if known else None


def spend_report(
    spend: Spend,
    entries: Sequence[Entry],
    *,
    heading: str | None,
    budget: MonthBudget | None,
    notes: Sequence[str],
) -> SpendReport:
    """The spend of a period with what the ledger knows of its jobs."""
    expected, ended = forecasts(entries), actuals(entries)
    return SpendReport(
        heading=heading,
        spend=spend,
        rows=tuple(_row(job, expected, ended) for job in spend.jobs),
        overrides=tuple(
            entry
            for entry in entries
            if isinstance(entry, OverrideEntry) and spend.since <= entry.at <= spend.until
        ),
        budget=budget,
        notes=tuple(notes),
    )


def _row(
    job: JobSpend,
    expected: Mapping[JobKey, ForecastEntry],
    ended: Mapping[JobKey, ActualEntry],
) -> JobRow:
    forecast = expected.get(job.use.forecast_key)
    actual = ended.get((job.use.cluster, job.use.job_id))
    padding = None if actual is None else actual.padding_percent
    return JobRow(
        job=job,
        forecast_usd=None if forecast is None else forecast.usd_per_task,
        padding_usd=None
        if padding is None or job.nodes_usd is None
        else job.nodes_usd * padding / 100,
    )
