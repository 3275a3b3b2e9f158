"""Explains what runs cost: the last measured run, every forecast, and what preemption adds.

The expressions are those of unit_costs.py, forecast.py and run_rates.py with their numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from cost.bill import Bill
from cost.component import Input
from cost.explanation import Explanation, Figure, number
from cost.forecast import Forecast, UnknownRun, forecasts
from cost.preemption import Disturbance
from cost.price import HOURS_PER_MONTH
from cost.run_rates import RunRates, run_rates
from cost.runs import PreemptionCost, preemption_costs
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


def preemption_items(bill: Bill) -> Iterator[Explanation]:
    """What an hour of useful work costs on preemptible nodes: `preemption[JOB]`."""
    rates = run_rates(bill.spec, bill.estimate, bill.book)
    for cost in preemption_costs(rates, bill.inputs):
        yield Explanation(
            item=f"preemption[{cost.job}]",
            title=f"Preemptible against on-demand nodes of {cost.job}",
            formula="M = 86400 s / (preemptions x nodes), t = Daly's interval; slowdown = "
            "M e^(R/M) (e^((t + d)/M) - 1) / t; USD a node-hour x nodes x slowdown",
            inputs=tuple(_preemption_inputs(cost.job, cost.losses)),
            figures=tuple(_preemption_figures(cost)),
            notes=() if cost.reason is None else (f"NOT KNOWN: {cost.reason}.",),
        )


def _preemption_inputs(job: str, losses: Disturbance) -> Iterator[Input]:
    stall, slowdown = losses.stall, losses.slowdown
    day = "" if stall.measured_on is None else f", measured on {stall.measured_on.isoformat()}"
    daly, young = "J. T. Daly, FGCS 22(3), 2006", "J. W. Young, CACM 17(9), 1974"
    for name, value, source in (
        ("preemptions a node-day", losses.preemptions_per_node_day, losses.source),
        ("nodes", Decimal(losses.num_nodes), f"jobs[{job}].nodes"),
        ("R: seconds to restart", losses.restart_s, losses.source),
        ("d: seconds of a checkpoint", stall.seconds, f"{stall.source}{day}"),
        ("M: seconds between preemptions", losses.mtbf_s, "86400 / (preemptions x nodes)"),
        ("t: seconds between checkpoints", losses.interval_s, f"{daly}, equation 37"),
        ("the same to first order", losses.young_s, f"{young}: sqrt(2 d M)"),
        ("slowdown", None if slowdown is None else slowdown.factor, f"{daly}, equation 20"),
    ):
        if value is not None:
            yield Input(name=name, value=number(value), source=source)


def _preemption_figures(cost: PreemptionCost) -> Iterator[Figure]:
    nodes, slowdown = cost.losses.num_nodes, cost.losses.slowdown
    unit = "USD for an hour of useful work"
    if cost.on_demand_usd_per_hour is not None:
        rate = number(cost.on_demand_usd_per_hour / nodes)
        yield Figure(
            name="on-demand",
            unit=unit,
            expression=f"{rate} * {nodes}",
            value=cost.on_demand_usd_per_hour,
        )
    if cost.preemptible_usd_per_hour is not None and slowdown is not None:
        assert cost.preemptible_node_usd_per_hour is not None
        rate = number(cost.preemptible_node_usd_per_hour)
        yield Figure(
            name="preemptible",
            unit=unit,
            expression=f"{rate} * {nodes} * {number(slowdown.factor)}",
            value=cost.preemptible_usd_per_hour,
        )


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
