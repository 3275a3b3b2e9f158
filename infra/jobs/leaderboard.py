"""Ranks the trials of a search by its metric: leaderboard(search, runs, states, usd) -> Board.

Owns the order and what is said of a trial without a result. What ran is trials.py's, what it cost
accounting's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from cost.budget import actuals
from cost.spend import spend
from infra.jobs.books import Books
from infra.jobs.settle import settle_from
from infra.jobs.slurm import Shell
from infra.jobs.trials import TaskState, TrialRun
from stacks.search_spec import Goal, SearchSpec

NOT_SUBMITTED = "NOT SUBMITTED"
NO_METRIC = "NO METRIC"
_LOOK_BACK = timedelta(days=31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One declared trial."""

    rank: int | None
    """From 1; None without a result."""
    number: int
    settings: tuple[str, ...]
    job_id: str | None
    state: str
    """PASS, or why it is not ranked."""
    value: float | None
    """The metric."""
    usd: Decimal | None
    """US dollars of its nodes; None while that is not known."""
    reason: str | None
    """What the record says of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The trials of one search, the best first, those without a result last."""

    search: SearchSpec
    rows: tuple[Row, ...]
    num_former: int
    """Tasks whose settings are no longer declared."""
    former_usd: Decimal

    @property
    def best(self) -> Row | None:
        """The winner so far."""
        return next((row for row in self.rows if row.rank == 1), None)

    @property
    def usd(self) -> Decimal:
        """US dollars of every task whose price is known."""
        return self.former_usd + sum((row.usd or Decimal(0) for row in self.rows), Decimal(0))


def leaderboard(
    search: SearchSpec,
    runs: Sequence[TrialRun],
    states: Sequence[TaskState],
    usd: Mapping[str, Decimal | None],
) -> Board:
    """The newest run of each declared trial; `usd` by job id."""
    newest = {tuple(run.settings): run for run in sorted(runs, key=lambda run: int(run.job_id))}
    by_id = {task.job_id: task.state for task in states if task.state != "PENDING"}
    waiting = {task.number for task in states if task.state == "PENDING"}
    rows = [
        _row(search, number, settings, newest.get(settings), by_id, waiting, usd)
        for number, settings in enumerate(search.settings)
    ]
    ranked = sorted((row for row in rows if row.value is not None), key=_better_first(search))
    places = {row.number: place for place, row in enumerate(ranked, 1)}
    others = [row for row in rows if row.value is None]
    declared = set(search.settings)
    former = [run for run in runs if run.settings not in declared]
    return Board(
        search=search,
        rows=tuple(replace(row, rank=places.get(row.number)) for row in (*ranked, *others)),
        num_former=len(former),
        former_usd=sum((usd.get(run.job_id) or Decimal(0) for run in former), Decimal(0))
        + _of_earlier_runs(runs, newest, declared, usd),
    )


def usd_by_job(
    books: Books, shell: Shell, cluster: str, ids: Sequence[str], *, now: datetime
) -> dict[str, Decimal | None]:
    """US dollars of these jobs' nodes up to now, by id; ended ones are settled on the way."""
    since = now - _LOOK_BACK
    with books.ledger.locked() as ledger:
        known = settle_from(
            ledger, shell, books, cluster=cluster, since=since, now=now, ids=ids
        ).uses
        ended = actuals(ledger.read().entries)
    starts = [run.started_at for use in known for run in use.runs]
    total = spend(books.rates, known, since=min([since, *starts]), until=now)
    found = {key[1]: entry.nodes_usd for key, entry in ended.items() if key[0] == cluster}
    found |= {job.use.job_id: job.nodes_usd for job in total.jobs if job.use.runs}
    return {each: found[each] for each in ids if each in found}


def _of_earlier_runs(
    runs: Sequence[TrialRun],
    newest: Mapping[tuple[str, ...], TrialRun],
    declared: set[tuple[str, ...]],
    usd: Mapping[str, Decimal | None],
) -> Decimal:
    """US dollars of runs of declared trials that a newer one replaced."""
    replaced = [run for run in runs if run.settings in declared and newest[run.settings] is not run]
    return sum((usd.get(run.job_id) or Decimal(0) for run in replaced), Decimal(0))


def _row(
    search: SearchSpec,
    number: int,
    settings: tuple[str, ...],
    run: TrialRun | None,
    by_id: Mapping[str, str],
    waiting: set[int],
    usd: Mapping[str, Decimal | None],
) -> Row:
    value, reason = None, None
    if run is None:
        state = "PENDING" if number in waiting else NOT_SUBMITTED
    elif run.record is None:
        state = by_id.get(run.job_id, "ENDED WITHOUT A RECORD")
    else:
        state = str(run.record.get("outcome"))
        told = run.record.get("reason")
        reason = None if told is None else str(told)
        if state == "PASS":
            value = _metric(run.record, search.metric)
            state = state if value is not None else NO_METRIC
    return Row(
        rank=None,
        number=number,
        settings=settings,
        job_id=None if run is None else run.job_id,
        state=state,
        value=value,
        usd=None if run is None else usd.get(run.job_id),
        reason=reason,
    )


def _metric(record: Mapping[str, object], name: str) -> float | None:
    metrics = record.get("metrics")
    value = metrics.get(name) if isinstance(metrics, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _better_first(search: SearchSpec) -> Callable[[Row], tuple[float, int]]:
    sign = 1 if search.goal is Goal.LOWEST else -1
    return lambda row: (sign * (row.value or 0.0), row.number)
