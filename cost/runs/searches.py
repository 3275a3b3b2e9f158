"""What a hyperparameter search costs, its trials as one sum; and what a week of shared nodes gives.

The second is of scheduled jobs that share a partition: dollars of their nodes, tokens that a
training reads, chats that a server has room for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from cost.chat.unit_costs import BillPart, UnitCosts, listed
from cost.report.layout import UNKNOWN, Table, money, picked, small_usd_text
from cost.resources.estimate import Estimate, known_sum
from cost.run_record import RunRecord
from cost.runs.forecast import SECONDS_PER_HOUR, Forecast, UnknownRun, forecast, limit_hours
from stacks.schedule import PartitionShifts, Shift, partition_shifts
from stacks.spec.slurm import JobSpec, SearchSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchCost:
    """A search as it would be submitted: all of its trials, or those that are left."""

    search: SearchSpec
    job: JobSpec
    runs: tuple[Forecast | UnknownRun, ...]
    """What each trial takes."""
    most_usd: Decimal | None
    """US dollars of all trials up to the time limit; None when the price is not known."""

    @property
    def most_hours(self) -> Decimal:
        """Hours from the first start to the last end by the time limits, on free nodes."""
        return self._rounds * limit_hours(self.job)

    @property
    def forecasts(self) -> tuple[Forecast, ...] | None:
        """One of each trial; None where one is not known."""
        found = tuple(run for run in self.runs if isinstance(run, Forecast))
        return found if len(found) == len(self.runs) else None

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars of all trials; None where one is not known."""
        found = self.forecasts
        return None if found is None else known_sum(run.nodes_usd for run in found)

    @property
    def run(self) -> Forecast | UnknownRun:
        """All trials as one run, which is what a budget and its ledger take."""
        first = self.runs[0]
        name, num_nodes = self.search.name, self.job.nodes * self.search.at_once
        found = self.forecasts
        if found is None or not isinstance(first, Forecast):
            unknown = next(run for run in self.runs if isinstance(run, UnknownRun))
            return replace(unknown, job=name, num_nodes=num_nodes, at_most_usd=self.most_usd)
        return replace(
            first,
            job=name,
            num_nodes=num_nodes,
            num_tokens=sum((run.num_tokens for run in found), Decimal(0)),
            busy_hours=self._rounds * max(run.busy_hours for run in found),
            hours=self._rounds * max(run.hours for run in found),
            nodes_usd=self.forecast_usd,
            cluster_share_usd=known_sum(run.cluster_share_usd for run in found),
        )

    @property
    def over(self) -> str | None:
        """Why the search is not submitted, with what to do; None where its limit holds it."""
        most = self.search.max_usd
        if most is None:
            return None
        name, usd, basis = self.search.name, self.forecast_usd, "the forecast"
        if usd is None:
            usd, basis = self.most_usd, "what the time limits allow"
        if usd is None:
            return f"{name}: max_usd is {small_usd_text(most)}, but its nodes have no price"
        if usd <= most:
            return None
        return (
            f"{name}: {basis} of {len(self.runs)} trials, {small_usd_text(usd)}, is over "
            f"searches.{name}.max_usd {small_usd_text(most)}; take values out of the grid, lower "
            "time_limit or epochs, or raise max_usd"
        )

    @property
    def _rounds(self) -> int:
        return math.ceil(len(self.runs) / self.search.at_once)


def search_cost(
    search: SearchSpec,
    rates: Estimate,
    records: Sequence[RunRecord],
    sets: Sequence[str] = (),
    trials: Sequence[Sequence[str]] | None = None,
) -> SearchCost:
    """The cost of these trials, or of all; `sets` are the settings of one submission."""
    job = next(each for each in rates.spec.jobs if each.name == search.job)
    wanted = search.settings if trials is None else trials
    each = rates.job_usd(job, limit_hours(job))
    return SearchCost(
        search=search,
        job=job,
        runs=tuple(forecast(job, rates, records, [*sets, *settings]) for settings in wanted),
        most_usd=None if each is None else each * len(wanted),
    )


def searches_part(units: UnitCosts) -> Iterable[BillPart]:
    """Part `searches`; none where the stack declares none."""
    searches = units.spec.searches
    found = [search_cost(each, units.estimate, units.records) for each in searches]
    return listed(
        "searches",
        found,
        title="Cost per search (own nodes of all trials)",
        headings=("Search", "Trials", "At once", "Hours at most", "At most", "Forecast"),
        row=lambda cost: (
            f"{cost.search.name} of {cost.job.name}",
            str(len(cost.runs)),
            str(cost.search.at_once),
            f"{cost.most_hours:,.2f}",
            small_usd_text(cost.most_usd),
            small_usd_text(cost.forecast_usd),
        ),
        plain=plain_search,
        notes=(
            "Searches: at most is every trial up to its time limit.",
            *(f"Search {over}." for cost in found if (over := cost.over) is not None),
        ),
    )


def search_line(cost: SearchCost) -> str:
    """The whole search for `soperator submit`."""
    usd = "the forecast is not known"
    if cost.forecast_usd is not None:
        usd = f"{small_usd_text(cost.forecast_usd)} by forecast"
    return (
        f"Search {cost.search.name}: {len(cost.runs)} trials of {cost.job.name}, "
        f"{cost.search.at_once} at once: {usd}, at most {small_usd_text(cost.most_usd)} and "
        f"{cost.most_hours:,.2f} h by the time limits."
    )


def plain_search(cost: SearchCost) -> dict[str, object]:
    """The search as JSON values; money is text."""
    paths = "search.at_once most_hours most_usd forecast_usd search.max_usd refused=over"
    names = picked(cost, "search.name job=job.name")
    return {**names, "num_trials": len(cost.runs), **picked(cost, paths)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftCost:
    """One scheduled job, a week of it."""

    shift: Shift
    node_hours: Decimal
    usd: Decimal | None
    """US dollars of its nodes; None when their price is not known."""
    tokens: Decimal | None
    """Tokens that it trains on; None: it does not train, or no speed is known."""
    chats: Decimal | None
    """Chats that it has room for; None: it serves none, or no speed is known."""

    @property
    def gives(self) -> str:
        """What comes of it."""
        if self.tokens is not None:
            return f"{self.tokens:,.0f} tokens trained on"
        if self.chats is not None:
            return f"{self.chats:,.0f} chats"
        return UNKNOWN


def shifts_part(units: UnitCosts) -> Iterable[BillPart]:
    """Part `shifts`; none where no two scheduled jobs share a partition."""
    rates = units.estimate
    found = partition_shifts(units.spec)
    if not found:
        return
    costs = {each.partition: _costs(each, rates, units) for each in found}
    paths = "partition num_nodes free_node_hours_per_week clash_hours_per_week"
    yield BillPart(
        name="shifts",
        tables=tuple(_table(each, costs[each.partition], rates) for each in found),
        notes=(
            (
                "Shifts: every run up to its time limit, mean of four weeks; free nodes are in the "
                "bill all the same."
            ),
        ),
        data=lambda: {
            "shifts": [
                {**picked(each, paths), "jobs": [_plain(cost) for cost in costs[each.partition]]}
                for each in found
            ]
        },
    )


def _costs(each: PartitionShifts, rates: Estimate, units: UnitCosts) -> tuple[ShiftCost, ...]:
    costs: list[ShiftCost] = []
    for shift in each.shifts:
        job, hours = shift.job, shift.hours_per_week
        run = None if job.is_server else forecast(job, rates, units.records)
        costs.append(
            ShiftCost(
                shift=shift,
                node_hours=hours * job.nodes,
                usd=rates.job_usd(job, hours),
                tokens=run.speed.tokens_per_s * hours * SECONDS_PER_HOUR
                if isinstance(run, Forecast)
                else None,
                chats=_chats(job, hours, units) if job.is_server else None,
            )
        )
    return tuple(costs)


def _chats(job: JobSpec, hours: Decimal, units: UnitCosts) -> Decimal | None:
    """Room for the reference chat in these hours, by the first speed that is known."""
    row = next(iter(units.known_chats), None)
    return row and row.chats_per_day_of_node * job.nodes * hours / 24


def _table(each: PartitionShifts, costs: tuple[ShiftCost, ...], rates: Estimate) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            cost.shift.job.name,
            cost.shift.job.schedule or "",
            f"{cost.shift.hours_per_week:,.1f}",
            f"{cost.node_hours:,.1f}",
            small_usd_text(cost.usd),
            cost.gives,
        )
        for cost in costs
    ]
    worker = rates.dearest(costs[0].shift.job)
    free = each.free_node_hours_per_week
    usd = None if worker is None else rates.nodes_usd(worker, 1, free)
    rows.append(("nobody", "", "", f"{free:,.1f}", small_usd_text(usd), "nothing"))
    if each.first_clash is not None:
        rows.append(
            (
                (
                    f"From {each.first_clash:%A %H:%M} on the schedules ask for more than the "
                    f"{each.num_nodes} nodes, {each.clash_hours_per_week:,.1f} h a week: one waits."
                ),
            )
        )
    return Table(
        title=f"A week of the {each.num_nodes} nodes of partition {each.partition}",
        headings=("Job", "Schedule", "Hours", "Node-hours", "Own nodes", "Gives"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _plain(cost: ShiftCost) -> dict[str, object]:
    paths = (
        "job=shift.job.name shift.job.schedule shift.hours_per_week node_hours_per_week=node_hours "
        "usd_per_week=usd tokens_per_week=tokens chats_per_week=chats"
    )
    return picked(cost, paths, money)
