"""Submits a job if the stack's budget has room for its forecast, and writes the forecast down.

Owns the order: settle what ended, look, submit, append; the ledger is locked all that time, so two
submissions at once cannot both take the same rest. Amounts are cost/budget.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from cost.budget import MonthBudget, forecasts, month_of
from cost.forecast import Forecast, UnknownRun
from cost.ledger import LedgerError, OpenLedger
from cost.ledger_entries import Entry, ForecastEntry, OverrideEntry
from infra.jobs.books import Books
from infra.jobs.errors import JobsError
from infra.jobs.settle import plain, settle_from
from infra.jobs.slurm import Shell
from infra.jobs.submit import Submission

Entries = tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """One submission as it stands before the budget."""

    run: Forecast | UnknownRun
    cluster: str
    """Host key of the login node."""
    now: datetime
    user: str
    """Who asks, as this machine knows them."""
    force: bool
    """Whether to submit what the budget has no room for."""
    num_tasks: int = 1
    """Tasks of an array that the run is of all together."""


def submit_within_budget(
    books: Books,
    shell: Shell,
    asking: Asking,
    submit: Callable[[], Submission],
    *,
    say: Callable[[str], None],
    begin: Callable[[Entries], None] = lambda _entries: None,
) -> Submission:
    """The submission that `submit` makes; refused where the forecast is more than what is left.

    `begin` runs after every refusal, with what the ledger gets once the job has its number.
    """
    with books.ledger.locked() as ledger:
        over = None
        if books.spec.budget is not None:
            over = _look(books, ledger, shell, asking, say)
        entries: Entries = (_forecast_entry(asking),)
        if over is not None:
            entries = (*entries, _override_entry(asking, over))
        begin(entries)
        submission = submit()
        try:
            write_down(ledger, entries, submission.job_id)
        except LedgerError as error:
            raise JobsError(
                f"{error}; job {submission.job_id} is submitted but not in the ledger: make room, "
                f"and the next command of {submission.stack} puts it there"
            ) from error
    return submission


def write_down(ledger: OpenLedger, entries: Entries, job_id: str) -> None:
    """Adds the entries of a submission under its number, once."""
    named = tuple(replace(entry, job_id=job_id) for entry in entries)
    known = forecasts(ledger.read().entries)
    if not any((entry.cluster, job_id) in known for entry in named):
        ledger.append(*named)


def budget_lines(books: Books, run: Forecast | UnknownRun, now: datetime) -> tuple[str, ...]:
    """What the budget would say to the run, from the ledger as it is; nothing without a budget."""
    usd = run.nodes_usd if isinstance(run, Forecast) else None
    return lines_together(books, run.job, usd, now)


def lines_together(books: Books, what: str, usd: Decimal | None, now: datetime) -> tuple[str, ...]:
    """What the budget would say to jobs that cost this together; nothing without a budget."""
    content = books.ledger.read()
    month = books.month(content.entries, now)
    if month is None:
        return content.problems
    refusal = None if usd is None else month.refusal(what, usd)
    return (*content.problems, str(month), *([] if refusal is None else [f"refused: {refusal}"]))


def check_together(
    books: Books,
    shell: Shell,
    what: str,
    usd: Decimal | None,
    *,
    cluster: str,
    now: datetime,
    say: Callable[[str], None],
) -> None:
    """Refuses several jobs before the first is submitted, where they are more than what is left."""
    if books.spec.budget is None or usd is None:
        return
    with books.ledger.locked() as ledger:
        month = _settled(books, ledger, shell, cluster=cluster, now=now, say=say)
    refusal = None if month is None else month.refusal(what, usd)
    if refusal is not None:
        raise JobsError(f"{refusal}; nothing was submitted")


def _settled(
    books: Books,
    ledger: OpenLedger,
    shell: Shell,
    *,
    cluster: str,
    now: datetime,
    say: Callable[[str], None],
) -> MonthBudget | None:
    """The month after every end that the cluster knows is written down; None without a budget."""
    try:
        since = month_of(now)[0]
        settle_from(ledger, shell, books, cluster=cluster, since=since, now=now)
    except JobsError as error:
        say(f"accounting does not answer ({error}); the budget is checked by the ledger alone")
    content = ledger.read()
    for problem in content.problems:
        say(problem)
    return books.month(content.entries, now)


def _look(
    books: Books,
    ledger: OpenLedger,
    shell: Shell,
    asking: Asking,
    say: Callable[[str], None],
) -> MonthBudget | None:
    """The month, if the run does not fit into it and was forced; refuses one that was not."""
    month = _settled(books, ledger, shell, cluster=asking.cluster, now=asking.now, say=say)
    if month is None:
        return None
    if not isinstance(asking.run, Forecast) or asking.run.nodes_usd is None:
        say(f"{asking.run.job}: its cost is not known, so the budget does not hold it back")
    refusal = _refusal(asking.run, month)
    if refusal is not None and not asking.force:
        raise JobsError(refusal)
    say(str(month))
    if refusal is None:
        return None
    say(f"{asking.run.job}: submitted over the budget with --force; the ledger says so")
    return month


def _refusal(run: Forecast | UnknownRun, month: MonthBudget) -> str | None:
    if not isinstance(run, Forecast) or run.nodes_usd is None:
        return None
    return month.refusal(run.job, run.nodes_usd)


def _forecast_entry(asking: Asking) -> ForecastEntry:
    run = asking.run
    is_known = isinstance(run, Forecast)
    return ForecastEntry(
        at=asking.now,
        job=run.job,
        job_id="",
        cluster=asking.cluster,
        num_nodes=run.num_nodes,
        hours=plain(run.hours) if is_known else None,
        nodes_usd=plain(run.nodes_usd) if is_known and run.nodes_usd is not None else None,
        basis=str(run.speed) if is_known else str(run),
        num_tasks=asking.num_tasks,
    )


def _override_entry(asking: Asking, month: MonthBudget) -> OverrideEntry:
    run = asking.run
    assert isinstance(run, Forecast)
    assert run.nodes_usd is not None
    return OverrideEntry(
        at=asking.now,
        job=run.job,
        job_id="",
        cluster=asking.cluster,
        user=asking.user,
        forecast_usd=plain(run.nodes_usd),
        left_usd=plain(month.left_usd),
        budget_usd=month.budget_usd,
    )
