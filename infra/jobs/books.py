"""What the money side of jobs works from: the declared stack, its rates, its ledger, its records.

Owns where the ledger lies: `<state>/runs/<stack>/ledger.jsonl`. Amounts are computed in cost/.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cost.budget import MonthBudget, month_budget
from cost.estimate import estimate
from cost.forecast import Forecast, UnknownRun, forecast
from cost.ledger import FILE_NAME, Ledger
from cost.ledger_entries import Entry
from cost.run_rates import RunRates, run_rates
from cost.run_record import RunRecord
from infra.jobs.records import load_records
from infra.prices.book import price_book
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """One stack's money, as this machine knows it."""

    spec: StackSpec
    rates: RunRates
    ledger: Ledger
    records: tuple[RunRecord, ...]

    def forecast(self, job: JobSpec, sets: Sequence[str] = ()) -> Forecast | UnknownRun:
        """What the job is going to take with these settings."""
        return forecast(job, self.rates, self.records, sets)

    def month(self, entries: Sequence[Entry], now: datetime) -> MonthBudget | None:
        """The budget's month; None where the stack declares no budget."""
        budget = self.spec.budget
        return None if budget is None else month_budget(budget, entries, now)


def open_books(spec: StackSpec, state: Path, say: Callable[[str], object]) -> Books:
    """The stack's books in this state folder; `say` gets a line where records are damaged."""
    book = price_book(spec, state)
    return Books(
        spec=spec,
        rates=run_rates(spec, estimate(spec, book), book),
        ledger=Ledger(state / "runs" / spec.name / FILE_NAME),
        records=load_records(state, spec.name, say),
    )
