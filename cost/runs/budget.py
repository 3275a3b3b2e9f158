"""What a month's budget has left: month_budget(budget, entries, now, queue).

Spent is what ended jobs cost inside the calendar month (UTC). Reserved is, of jobs without an end,
the forecast that this ledger has (of an array, for its tasks without one); any other job counts as
what Slurm lets it cost at most, so that no member's word makes or takes room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from cost.report.layout import usd_text
from cost.resources.estimate import Estimate, known_sum
from cost.runs.ledger import (
    ActualEntry,
    Entry,
    JobKey,
    actuals,
    forecasts,
    open_parts,
)
from cost.runs.spend import By, JobUse, month_of, span_s
from stacks.machines import nodeset_of, share_of_node, workers_of
from stacks.spec.cost import BudgetSpec
from stacks.spec.nodes import WorkerSpec

_ZERO: Final = Decimal(0)
_SECONDS_PER_HOUR: Final = Decimal(3600)
# Longer forecasts reach into this month anyway, and timedelta has an end.
_LONGEST_HOURS: Final = Decimal(24 * 366)


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one job, or an array, takes of a month's budget."""

    key: JobKey
    array_key: JobKey
    """Of the array that it is a task of; else its own."""
    usd: Decimal | None
    """US dollars; None: not known."""
    so_far_usd: Decimal | None
    """The part of them that is spent already."""
    is_spent: bool
    """Whether it has ended; else it is a reservation."""
    job: str
    user: str = ""
    account: str = ""
    """Empty, as the user is, where a ledger knows the submission alone."""
    is_told: bool = False
    """Whether the user's own word in budget.ledger is all that is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthBudget:
    """The budget of one stack in one month, US dollars."""

    month: str
    """YYYY-MM."""
    budget: BudgetSpec
    charges: tuple[Charge, ...]

    @property
    def budget_usd(self) -> Decimal:
        """All that the month's jobs may cost."""
        return self.budget.usd_per_month

    @property
    def spent_usd(self) -> Decimal:
        """What ended jobs cost."""
        return _sum(each for each in self.charges if each.is_spent)

    @property
    def reserved_usd(self) -> Decimal:
        """What jobs without an end may cost yet."""
        return _sum(each for each in self.charges if not each.is_spent)

    @property
    def num_unknown(self) -> int:
        """Jobs of the month that count for nothing: nothing bounds them, or they have no price."""
        return sum(each.usd is None for each in self.charges)

    @property
    def left_usd(self) -> Decimal:
        """What another job may cost; below 0 when the month is over its budget."""
        return self.budget_usd - _sum(self.charges)

    def __str__(self) -> str:
        """The month in one line."""
        unknown = f"; {self.num_unknown} jobs not counted" if self.num_unknown else ""
        return (
            f"budget {self.month}: {usd_text(self.left_usd)} left of {usd_text(self.budget_usd)} "
            f"({usd_text(self.spent_usd)} spent, {usd_text(self.reserved_usd)} reserved{unknown})"
        )

    def refusal(
        self,
        job: str,
        usd: Decimal | None,
        *,
        user: str = "",
        account: str = "",
        basis: str = "the forecast",
    ) -> str | None:
        """Why a job that may cost so much is not submitted, and what to do; None when it fits.

        One of unknown cost does. `basis`: where the cost comes from.
        """
        words, key = str(self), "usd_per_month"
        left_usd = self.left_usd
        for name, which, most_usd in (
            (user, "user", self.budget.usd_per_user),
            (account, "account", self.budget.usd_per_account),
        ):
            if not name or most_usd is None:
                continue
            own_usd = most_usd - _sum(e for e in self.charges if getattr(e, which) == name)
            if own_usd < left_usd:
                left_usd, key = own_usd, f"usd_per_{which}"
                words = (
                    f"{which} {name} has {usd_text(own_usd)} left of {usd_text(most_usd)}; {self}"
                )
        if usd is None or usd <= left_usd:
            return None
        return (
            f"{job}: {basis} of {usd_text(usd)} is more than what is left: {words}"
            f"{self._who()}; use fewer nodes or epochs, a shorter time_limit, raise budget.{key} "
            "in the stack, wait for the next month, or submit with --force, which the ledger "
            "records"
        )

    def reserved_by(self, key: By, name: str) -> Decimal:
        """US dollars that jobs without an end may cost yet, of one user, account or job."""
        return _sum(
            each for each in self.charges if not each.is_spent and getattr(each, key) == name
        )

    def _who(self) -> str:
        """Whose reservations, and whose words about what was spent, are the largest."""
        reserved = _largest(each for each in self.charges if not each.is_spent)
        told = _largest(each for each in self.charges if each.is_spent and each.is_told)
        return (reserved and f"; reserved by {reserved}") + (told and f"; told by {told}")


_MOST_NAMED: Final = 3


def _largest(charges: Iterable[Charge]) -> str:
    """The users who have most of them, with their jobs."""
    groups: dict[str, list[Charge]] = defaultdict(list)
    for each in charges:
        if each.usd:
            groups[each.user or "submitted from here"].append(each)
    return ", ".join(
        f"{user} {usd_text(_sum(groups[user]))} "
        f"(job {', '.join(each.key[1] for each in groups[user][:_MOST_NAMED])}"
        f"{' and more' if len(groups[user]) > _MOST_NAMED else ''})"
        for user in sorted(groups, key=lambda user: (-_sum(groups[user]), user))[:_MOST_NAMED]
    )


def _sum(charges: Iterable[Charge]) -> Decimal:
    return sum((each.usd or _ZERO for each in charges), _ZERO)


def month_budget(
    budget: BudgetSpec,
    entries: Sequence[Entry],
    now: datetime,
    queue: Sequence[Charge] = (),
    told: Mapping[str, Sequence[Entry]] | None = None,
) -> MonthBudget:
    """The month of `now`, from the ledger's entries and what Slurm says of its queue.

    Nobody's word is taken for another's job: it counts up to its time limit. A job of this ledger
    counts by its forecast, or by what it cost already where that is more. `told`: entries of
    members; each is taken for a job of that member which neither ledger nor queue know.
    """
    start, end = month_of(now)
    again = {each.key for each in queue if not each.is_spent}
    ended = {key: each for key, each in actuals(entries).items() if key not in again}
    expected, parts = forecasts(entries), open_parts(entries)
    charges = [
        Charge(
            key=key,
            array_key=(actual.cluster, actual.array_id or actual.job_id),
            usd=usd,
            so_far_usd=usd,
            is_spent=True,
            job=actual.job,
            user=actual.user,
            account=actual.account,
        )
        for key, actual in ended.items()
        if (part := _part_in(actual, start, end)) > 0
        for usd in (None if actual.nodes_usd is None else part * actual.nodes_usd,)
    ]
    of_array: dict[JobKey, list[Charge]] = defaultdict(list)
    for each in queue:
        if each.key not in ended:
            of_array[each.array_key].append(each)
    for key, part in parts.items():
        entry, tasks = expected[key], of_array.get(key, [])
        if entry.nodes_usd is None and tasks:
            continue
        # Submitted in this month, or its forecast runs into it. Subtracted: a sum with the time
        # that a member wrote down could pass the end of the calendar.
        hours = min(entry.hours or _ZERO, _LONGEST_HOURS)
        if tasks or start - entry.at <= timedelta(seconds=int(hours * 3600)):
            usd = None if entry.held_usd is None else part * entry.held_usd
            so_far = sum((each.so_far_usd or _ZERO for each in tasks), _ZERO)
            charges.append(
                Charge(
                    key=key,
                    array_key=key,
                    usd=None if usd is None else max(usd, so_far),
                    so_far_usd=so_far,
                    is_spent=False,
                    job=entry.job,
                    user=tasks[0].user if tasks else "",
                    account=tasks[0].account if tasks else "",
                )
            )
            of_array.pop(key, None)
    charges += [each for tasks in of_array.values() for each in tasks]
    known = {*ended, *expected, *(key for each in queue for key in (each.key, each.array_key))}
    for user, own in (told or {}).items():
        theirs = month_budget(budget, own, now).charges
        charges += [
            replace(each, user=user, is_told=True) for each in theirs if each.key not in known
        ]
    return MonthBudget(month=f"{start:%Y-%m}", budget=budget, charges=tuple(charges))


def queue_charge(rates: Estimate, use: JobUse, now: datetime) -> Charge:
    """What a job of the queue takes of the month: at most, up to its time limit, until it ended.

    Only what Slurm itself says and enforces counts, and the dearest nodes that it may get.
    """
    start, end = month_of(now)
    so_far = known_sum(
        _run_usd(rates, use, run.nodes, run.started_at, run.ended_at or now, start, end)
        for run in use.runs
    )
    usd = so_far
    if not use.is_finished:
        open_run = next((run for run in use.runs if run.ended_at is None), None)
        began = now if open_run is None else open_run.started_at
        stop = max(now, use.end_at_most(began, end))
        nodes = None if open_run is None else open_run.nodes
        usd = known_sum([so_far, _run_usd(rates, use, nodes, now, stop, start, end)])
    return Charge(
        key=(use.cluster, use.job_id),
        array_key=use.forecast_key,
        usd=usd,
        so_far_usd=so_far,
        is_spent=use.is_finished,
        job=use.job,
        user=use.user,
        account=use.account,
    )


def _run_usd(
    rates: Estimate,
    use: JobUse,
    nodes: Sequence[str] | None,
    began: datetime,
    stop: datetime,
    start: datetime,
    end: datetime,
) -> Decimal | None:
    """US dollars of these nodes inside the month; None for nodes: of those that it may get."""
    hours = max(_ZERO, span_s(min(stop, end) - max(began, start))) / _SECONDS_PER_HOUR
    workers = {worker.name: worker for worker in rates.spec.nodes.workers}

    def rate(worker: WorkerSpec | None, partition: str) -> Decimal | None:
        usd = None if worker is None else rates.node_usd_per_hour[worker.name]
        if usd is None or worker is None or rates.spec.attached is None:
            return usd
        # What a job of others' cluster pays of a node; all of it where it may have asked for GPUs
        # in a way that the queue does not show.
        share = share_of_node(rates.spec, partition, worker, use.gpus_per_node, use.cpus_per_node)
        return usd * (share if use.gpus_per_node or not worker.gpus else 1)

    if nodes is not None:
        of = [workers.get(nodeset_of(rates.spec, node)) for node in nodes]
        named = known_sum([rate(worker, use.partition) for worker in of])
        return None if named is None else named * hours
    fits: list[Decimal | None] = []
    for name in use.partition.split(","):
        # One that the stack does not declare may have any of its nodes.
        these = workers_of(rates.spec, name) or rates.spec.nodes.workers
        fits += [rate(worker, name) for worker in these if worker.gpus >= use.gpus_per_node]
    if not fits or None in fits:
        return None
    return max(filter(None, fits), default=_ZERO) * use.num_nodes * use.num_tasks * hours


def _part_in(actual: ActualEntry, start: datetime, end: datetime) -> Decimal:
    """The part of the job's node time that lies inside the month, 0 to 1."""
    whole = inside = _ZERO
    for run in actual.runs:
        ended = run.ended_at or run.started_at
        num_nodes = len(run.nodes)
        whole += num_nodes * max(_ZERO, span_s(ended - run.started_at))
        inside += num_nodes * max(_ZERO, span_s(min(ended, end) - max(run.started_at, start)))
    return inside / whole if whole else _ZERO
