"""Explains what runs cost: run_items(bill) -> the last measured run and every forecast.

The expressions are those of unit_costs.py, forecast.py and run_rates.py with their numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost.bill import Bill
from cost.component import Input
from cost.explanation import Explanation, Figure, number
from cost.forecast import Forecast, UnknownRun, forecasts
from cost.price import HOURS_PER_MONTH
from cost.run_rates import RunRates, run_rates
from cost.unit_costs import NotKnown, RunCost

LAST = "run"
"""Item of the last training run that passed, which the output `cost.per_run_usd` names."""


def run_items(bill: Bill) -> Iterator[Explanation]:
    """The last measured run, then the forecast of every job that trains."""
    run = bill.unit_costs.run
    if isinstance(run, NotKnown):
        yield Explanation(
            item=LAST, title="Cost of the last training run", formula="NOT KNOWN", notes=(str(run),)
        )
    else:
        yield _measured(bill, run)
    rates = run_rates(bill.spec, bill.estimate, bill.book)
    for found in forecasts(rates, bill.records):
        yield _unknown(found) if isinstance(found, UnknownRun) else _forecast(bill, rates, found)


def _measured(bill: Bill, run: RunCost) -> Explanation:
    total = bill.estimate
    hours = f"({number(run.duration_s)} / 3600)"
    return Explanation(
        item=LAST,
        title=f"Cost of {run.job}, job {run.job_id}",
        formula="USD a month of the cluster / hours a month x hours of the job",
        inputs=(
            Input(
                name="USD a month at min_nodes",
                value=number(total.monthly_low_usd),
                source="explain total",
            ),
            Input(
                name="seconds of the job",
                value=number(run.duration_s),
                source=f"run record of job {run.job_id} on {run.device}, {run.date.isoformat()}",
            ),
        ),
        figures=(
            Figure(
                name="whole cluster at min_nodes",
                unit="USD a run",
                expression=f"{number(total.monthly_low_usd)} / {number(HOURS_PER_MONTH)} * {hours}",
                value=run.cluster_usd,
            ),
        ),
    )


def _unknown(run: UnknownRun) -> Explanation:
    return Explanation(
        item=f"run[{run.job}]",
        title=f"Forecast of {run.job}",
        formula="tokens / tokens a second = hours; hours x nodes x USD a node-hour",
        notes=(f"{run}.",),
    )


def _forecast(bill: Bill, rates: RunRates, run: Forecast) -> Explanation:
    return Explanation(
        item=f"run[{run.job}]",
        title=f"Forecast of {run.job}",
        formula="tokens / tokens a second = hours; hours x nodes x USD a node-hour",
        inputs=tuple(_forecast_inputs(rates, run)),
        figures=tuple(_forecast_figures(bill, rates, run)),
        notes=tuple(f"{note}." for note in run.notes),
    )


def _forecast_inputs(rates: RunRates, run: Forecast) -> Iterator[Input]:
    yield Input(
        name="tokens", value=number(run.num_tokens), source=f"runs[{run.job}] x epochs, or counted"
    )
    yield Input(
        name="tokens a second",
        value=number(run.speed.tokens_per_s),
        source=str(run.speed),
    )
    yield Input(name="nodes", value=str(run.num_nodes), source=f"jobs[{run.job}].nodes")
    rate = rates.node_usd_per_hour[run.worker.name]
    if rate is not None:
        yield Input(
            name="USD a node-hour",
            value=number(rate),
            source=f"explain nodes.workers[{run.worker.name}]",
        )
    slowdown = None if run.disturbance is None else run.disturbance.slowdown
    if run.disturbance is not None and slowdown is not None:
        yield Input(
            name="slowdown by preemptions",
            value=number(slowdown.factor),
            source=f"Daly 2006 at {run.disturbance.preemptions_per_node_day} a node-day: "
            f"{run.disturbance.source}",
        )


def _forecast_figures(bill: Bill, rates: RunRates, run: Forecast) -> Iterator[Figure]:
    hours = f"{number(run.num_tokens)} / {number(run.speed.tokens_per_s)} / 3600"
    slowdown = None if run.disturbance is None else run.disturbance.slowdown
    if slowdown is not None:
        hours = f"{hours} * {number(slowdown.factor)}"
    yield Figure(name="expected", unit="hours", expression=hours, value=run.hours)
    rate = rates.node_usd_per_hour[run.worker.name]
    if rate is None or run.nodes_usd is None:
        return
    nodes = f"{number(rate)} * {run.num_nodes} * ({hours})"
    yield Figure(name="own nodes", unit="USD a run", expression=nodes, value=run.nodes_usd)
    if run.cluster_share_usd is None:
        return
    around = f"({number(rates.control_plane_usd_per_hour)} + {number(rates.storage_usd_per_hour)})"
    most = max(run.num_nodes, sum(worker.min_nodes for worker in bill.spec.nodes.workers))
    yield Figure(
        name="with its share of the rest of the cluster",
        unit="USD a run",
        expression=f"{nodes} + {around} * ({hours}) * {run.num_nodes} / {most}",
        value=run.cluster_share_usd,
    )
