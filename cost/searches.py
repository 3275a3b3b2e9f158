"""What a hyperparameter search costs: its trials as one sum of hours and dollars.

Owns the sum, the limit of the search, the part of the bill and the line of `soperator submit`. What
one trial takes is forecast.py's, with the settings of the trial.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from cost.forecast import SECONDS_PER_HOUR, Forecast, UnknownRun, forecast
from cost.layout import UNKNOWN, Table, small_usd_text
from cost.part import Inputs, Part
from cost.run_rates import RunRates, run_rates
from cost.run_record import RunRecord
from cost.summary import money, number
from stacks.search_spec import SearchSpec
from stacks.slurm_spec import JobSpec
from stacks.slurm_time import slurm_seconds

_TINY = Decimal("0.000001")


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
        limit = Decimal(slurm_seconds(self.job.time_limit) or 0) / SECONDS_PER_HOUR
        return self._rounds * limit

    @property
    def forecasts(self) -> tuple[Forecast, ...] | None:
        """One of each trial; None where one is not known."""
        found = tuple(run for run in self.runs if isinstance(run, Forecast))
        return found if len(found) == len(self.runs) else None

    @property
    def forecast_usd(self) -> Decimal | None:
        """US dollars of all trials; None where one is not known."""
        amounts = [run.nodes_usd for run in self.forecasts or ()]
        known = [usd for usd in amounts if usd is not None]
        return sum(known, Decimal(0)) if known and len(known) == len(self.runs) else None

    @property
    def run(self) -> Forecast | UnknownRun:
        """All trials as one run, which is what a budget and its ledger take."""
        first = self.runs[0]
        name, num_nodes = self.search.name, self.job.nodes * self.search.at_once
        found = self.forecasts
        if found is None or not isinstance(first, Forecast):
            unknown = next(run for run in self.runs if isinstance(run, UnknownRun))
            return replace(unknown, job=name, num_nodes=num_nodes, at_most_usd=self.most_usd)
        shares = [run.cluster_share_usd for run in found if run.cluster_share_usd is not None]
        return replace(
            first,
            job=name,
            num_nodes=num_nodes,
            num_tokens=sum((run.num_tokens for run in found), Decimal(0)),
            busy_hours=self._rounds * max(run.busy_hours for run in found),
            hours=self._rounds * max(run.hours for run in found),
            nodes_usd=self.forecast_usd,
            cluster_share_usd=sum(shares, Decimal(0)) if len(shares) == len(found) else None,
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
    rates: RunRates,
    records: Sequence[RunRecord],
    sets: Sequence[str] = (),
    trials: Sequence[Sequence[str]] | None = None,
) -> SearchCost:
    """The cost of these trials, or of all; `sets` are the settings of one submission."""
    job = next(each for each in rates.spec.jobs if each.name == search.job)
    wanted = search.settings if trials is None else trials
    worker = rates.dearest(job)
    limit = Decimal(slurm_seconds(job.time_limit) or 0) / SECONDS_PER_HOUR
    each = None if worker is None else rates.nodes_usd(worker, job.nodes, limit)
    return SearchCost(
        search=search,
        job=job,
        runs=tuple(forecast(job, rates, records, [*sets, *settings]) for settings in wanted),
        most_usd=None if each is None else each * len(wanted),
    )


def searches_part(inputs: Inputs) -> Iterable[Part]:
    """Part `searches`; none where the stack declares none."""
    rates = run_rates(inputs.spec, inputs.estimate, inputs.book)
    found = [search_cost(search, rates, inputs.records) for search in inputs.spec.searches]
    if found:
        yield _part(found)


def search_line(cost: SearchCost) -> str:
    """The whole search for `soperator submit`."""
    usd = "the forecast is not known"
    if cost.forecast_usd is not None:
        usd = f"{small_usd_text(cost.forecast_usd)} by forecast"
    return (
        f"Search {cost.search.name}: {len(cost.runs)} trials of {cost.job.name}, "
        f"{cost.search.at_once} at once: {usd}, at most {_usd(cost.most_usd)} and "
        f"{cost.most_hours:,.2f} h by the time limits."
    )


def plain_search(cost: SearchCost) -> dict[str, object]:
    """The search as JSON values; money is text."""
    return {
        "name": cost.search.name,
        "job": cost.job.name,
        "num_trials": len(cost.runs),
        "at_once": cost.search.at_once,
        "most_hours": number(cost.most_hours),
        "most_usd": _money(cost.most_usd),
        "forecast_usd": _money(cost.forecast_usd),
        "max_usd": _money(cost.search.max_usd),
        "refused": cost.over,
    }


def _part(found: Sequence[SearchCost]) -> Part:
    return Part(
        name="searches",
        tables=(
            Table(
                title="Cost per search (own nodes of all trials)",
                headings=("Search", "Trials", "At once", "Hours at most", "At most", "Forecast"),
                rows=tuple(
                    (
                        f"{cost.search.name} of {cost.job.name}",
                        str(len(cost.runs)),
                        str(cost.search.at_once),
                        f"{cost.most_hours:,.2f}",
                        _usd(cost.most_usd),
                        _usd(cost.forecast_usd),
                    )
                    for cost in found
                ),
                num_text_columns=1,
            ),
        ),
        notes=(
            "Searches: at most is every trial up to its time limit.",
            *(f"Search {over}." for cost in found if (over := cost.over) is not None),
        ),
        plain={"searches": [plain_search(cost) for cost in found]},
    )


def _usd(usd: Decimal | None) -> str:
    return UNKNOWN if usd is None else small_usd_text(usd)


def _money(usd: Decimal | None) -> str | None:
    return None if usd is None else money(usd, _TINY)
