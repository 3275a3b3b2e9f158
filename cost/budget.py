"""What is left of a stack's budget in a calendar month (UTC): month_budget(budget, entries, now).

Spent is what finished jobs cost inside the month; reserved is the forecast of every job whose end
the ledger does not know yet, of an array the part of its tasks that have none. Owns no file
(ledger.py), and refuses nothing by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from cost.layout import usd_text
from cost.ledger_entries import ActualEntry, Entry, ForecastEntry
from stacks.cost_spec import BudgetSpec

_ZERO: Final = Decimal(0)
# Longer forecasts reach into this month anyway, and timedelta has an end.
_LONGEST_HOURS: Final = Decimal(24 * 366)
JobKey = tuple[str, str]
"""Cluster and job id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthBudget:
    """The budget of one stack in one month, US dollars."""

    month: str
    """YYYY-MM."""
    budget_usd: Decimal
    spent_usd: Decimal
    reserved_usd: Decimal
    num_unknown: int
    """Jobs of the month that count for nothing: no forecast and no end, or no price."""

    @property
    def left_usd(self) -> Decimal:
        """What another job may cost; below 0 when the month is over its budget."""
        return self.budget_usd - self.spent_usd - self.reserved_usd

    def __str__(self) -> str:
        """The month in one line."""
        unknown = f"; {self.num_unknown} jobs not counted" if self.num_unknown else ""
        return (
            f"budget {self.month}: {usd_text(self.left_usd)} left of {usd_text(self.budget_usd)} "
            f"({usd_text(self.spent_usd)} spent, {usd_text(self.reserved_usd)} reserved by "
            f"forecasts{unknown})"
        )

    def refusal(self, job: str, forecast_usd: Decimal) -> str | None:
        """Why a job of this forecast is not submitted, and what to do; None when it fits."""
        if forecast_usd <= self.left_usd:
            return None
        return (
            f"{job}: the forecast of {usd_text(forecast_usd)} is more than what is left: {self}; "
            "use fewer nodes or epochs, raise budget.usd_per_month in the stack, wait for the next "
            "month, or submit with --force, which the ledger records"
        )


def month_budget(budget: BudgetSpec, entries: Sequence[Entry], now: datetime) -> MonthBudget:
    """The month of `now`, from the ledger's entries."""
    start, end = month_of(now)
    ended = actuals(entries)
    spent, reserved, num_unknown = _ZERO, _ZERO, 0
    for actual in ended.values():
        part = _part_in(actual, start, end)
        if part > 0 and actual.nodes_usd is None:
            num_unknown += 1
        spent += part * (actual.nodes_usd or _ZERO)
    expected = forecasts(entries)
    for key, part in open_parts(entries).items():
        entry = expected[key]
        if not _reaches(entry, start):
            continue
        num_unknown += entry.nodes_usd is None
        reserved += part * (entry.nodes_usd or _ZERO)
    return MonthBudget(
        month=f"{start:%Y-%m}",
        budget_usd=budget.usd_per_month,
        spent_usd=spent,
        reserved_usd=reserved,
        num_unknown=num_unknown,
    )


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """First moment of the calendar month, and of the next one."""
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def actuals(entries: Sequence[Entry]) -> dict[JobKey, ActualEntry]:
    """The newest word on each job that ended."""
    return {(e.cluster, e.job_id): e for e in entries if isinstance(e, ActualEntry)}


def forecasts(entries: Sequence[Entry]) -> dict[JobKey, ForecastEntry]:
    """The forecast of each job that was submitted."""
    return {(e.cluster, e.job_id): e for e in entries if isinstance(e, ForecastEntry)}


def open_parts(entries: Sequence[Entry]) -> dict[JobKey, Decimal]:
    """The part, up to 1, of each forecast whose jobs have not ended; those that have are left out.

    Of an array every task that ended counts, in whatever order: the one with its id is no last one.
    """
    ended = actuals(entries)
    tasks: dict[JobKey, int] = {}
    for entry in ended.values():
        if entry.array_id is not None:
            key = (entry.cluster, entry.array_id)
            tasks[key] = tasks.get(key, 0) + entry.num_tasks
    found: dict[JobKey, Decimal] = {}
    for key, entry in forecasts(entries).items():
        num_ended = tasks.get(key, 0) if entry.num_tasks > 1 else int(key in ended)
        if num_ended < entry.num_tasks:
            found[key] = Decimal(entry.num_tasks - num_ended) / entry.num_tasks
    return found


def _part_in(actual: ActualEntry, start: datetime, end: datetime) -> Decimal:
    """The part of the job's node time that lies inside the month, 0 to 1."""
    whole = inside = _ZERO
    for run in actual.runs:
        ended = run.ended_at or run.started_at
        num_nodes = len(run.nodes)
        whole += num_nodes * _seconds(ended - run.started_at)
        inside += num_nodes * _seconds(min(ended, end) - max(run.started_at, start))
    return inside / whole if whole else _ZERO


def _reaches(entry: ForecastEntry, start: datetime) -> bool:
    """Whether the job was submitted in this month, or its forecast runs into it."""
    hours = min(entry.hours or _ZERO, _LONGEST_HOURS)
    return entry.at + timedelta(seconds=int(hours * 3600)) >= start


def _seconds(span: timedelta) -> Decimal:
    return max(_ZERO, Decimal(span // timedelta(seconds=1)))
