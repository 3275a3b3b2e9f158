"""Where a figure of the bill comes from: explain(bill, item) -> formula, inputs and arithmetic.

An item is a line (by its declaration or its printed name), a total, a chat, a run or a rule of the
policy. The arithmetic is an expression of plain numbers that gives the figure, digit for digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches

from cost.bill.bill import Bill
from cost.bill.explain_chat import (
    break_even_items,
    chat_expression,
    chat_items,
    cluster_expression,
    room_expression,
)
from cost.chat.speeds import ChatCost
from cost.chat.unit_costs import NotKnown, RunCost
from cost.choose.limits import Limit, limits
from cost.prices.price import HOURS_PER_MONTH
from cost.report.explanation import Explanation, Figure, added, line_expression, number
from cost.resources.component import CostComponent, Input, Scope
from cost.resources.estimate import RunRates, run_rates
from cost.runs.forecast import Disturbance, Forecast, UnknownRun, forecasts
from cost.runs.runs import PreemptionCost, preemption_costs
from stacks.errors import UserError

_ALIASES = {
    "per_chat_usd": "chat",
    "serving_node_per_chat_usd": "chat",
    "per_1m_tokens_usd": "chat",
    "per_run_usd": "run",
    "hourly_usd": "total",
    "hourly_high_usd": "total",
    "monthly_low_usd": "total",
    "monthly_high_usd": "total",
    "subtotal_low_usd": "total.seed",
    "subtotal_high_usd": "total.seed",
    "total": "total",
    "subtotal": "total.seed",
    "subtotal, not in seed 000": "total.beyond",
    "$/h": "total",
    "$/month": "total",
    "$/run": "run",
    "$/1m tokens": "chat",
    "$/chat": "chat",
}
"""Keys of the output `cost`, names that are printed, and the item that explains each."""
_MOST_HINTS = 3


def explain(bill: Bill, item: str) -> Explanation:
    """The explanation of the item; a line also answers to the name that the bill prints."""
    found = {each.item: each for each in explanations(bill)}
    names = {line.name.lower(): line.id for line in bill.estimate.components}
    names |= {amount.label.lower(): _run_item(amount.name) for amount in bill.amounts}
    names |= {amount.name.lower(): _run_item(amount.name) for amount in bill.amounts}
    wanted = _ALIASES.get(item.strip().lower(), item)
    key = wanted if wanted in found else names.get(item.strip().lower(), "")
    if key in found:
        return found[key]
    known = [*found, *names, *_ALIASES]
    parts = [name for name in known if item.strip().lower() in name.lower()]
    near = list(dict.fromkeys([*get_close_matches(item, known, n=1), *parts]))[:_MOST_HINTS]
    hint = f"did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    raise UserError(
        f"{item}: no figure of {bill.spec.name} has this name; "
        + (hint or f"known: {', '.join(found)}")
    )


def explanations(bill: Bill) -> Iterator[Explanation]:
    """Every item, in the order of the bill."""
    for line in bill.estimate.components:
        yield _line(line)
    yield from _totals(bill)
    yield from chat_items(bill)
    yield from break_even_items(bill)
    yield from run_items(bill)
    yield from preemption_items(bill)
    for limit in limits(bill.inputs):
        yield _limit(bill, limit)


def _run_item(name: str) -> str:
    """`per_run_usd[finetune]` of the outputs is the item `run[finetune]`."""
    return name.replace("per_run_usd[", "run[")


def _line(line: CostComponent) -> Explanation:
    keys = f"Config keys: {', '.join(line.keys)}." if line.keys else ""
    return Explanation(
        item=line.id,
        title=f"{line.section}: {line.name}, {line.size}",
        formula=line.formula,
        inputs=line.inputs,
        figures=tuple(_line_figures(line)),
        notes=(keys,) if keys else (),
    )


def _line_figures(line: CostComponent) -> Iterator[Figure]:
    low, high = line.monthly_low_usd, line.monthly_high_usd
    if low is None or high is None or not line.terms:
        return
    ends = (
        [("", low, False)]
        if low == high
        else [
            ("at min_nodes", low, False),
            ("at max_nodes", high, True),
        ]
    )
    for name, value, is_high in ends:
        yield Figure(name, "USD a month", line_expression(line, high=is_high), value)


def _totals(bill: Bill) -> Iterator[Explanation]:
    total = bill.estimate
    yield _total("total", f"Total of {bill.spec.name}", total.components)
    for name, scope in (("total.seed", Scope.SEED), ("total.beyond", Scope.BEYOND)):
        lines = tuple(line for line in total.components if line.scope is scope)
        if lines:
            yield _total(name, f"Lines of {bill.spec.name}: {scope}", lines)


def _total(item: str, title: str, lines: tuple[CostComponent, ...]) -> Explanation:
    known = [
        (line, line.monthly_low_usd, line.monthly_high_usd)
        for line in lines
        if line.monthly_low_usd is not None and line.monthly_high_usd is not None
    ]
    figures: list[Figure] = []
    for name, amounts in (
        ("at min_nodes", [low for _, low, _ in known]),
        ("at max_nodes", [high for _, _, high in known]),
    ):
        monthly = sum(amounts[1:], amounts[0]) if amounts else HOURS_PER_MONTH * 0
        expression = added(amounts)
        figures += [
            Figure(name, "USD a month", expression, monthly),
            Figure(
                name,
                "USD an hour",
                f"({expression}) / {number(HOURS_PER_MONTH)}",
                monthly / HOURS_PER_MONTH,
            ),
        ]
    unpriced = [line for line in lines if line.unknown is not None]
    return Explanation(
        item=item,
        title=title,
        formula="sum of the lines; an hour is a month / 730 h",
        inputs=tuple(
            Input(
                line.name,
                number(low) if low == high else f"{number(low)}..{number(high)}",
                f"explain {line.id}",
            )
            for line, low, high in known
        ),
        figures=tuple(figures),
        notes=tuple(
            f"Not priced, so the total is a lower bound: {line.name}." for line in unpriced
        ),
    )


def _limit(bill: Bill, limit: Limit) -> Explanation:
    kept = "not known" if limit.is_kept is None else "kept" if limit.is_kept else "BROKEN"
    figure = _limit_figure(bill, limit)
    return Explanation(
        item=limit.key,
        title=f"{limit.key}: {kept}",
        formula=f"{limit.got}, allowed is {limit.allowed}",
        inputs=() if limit.most is None else (Input("limit", number(limit.most), limit.key),),
        figures=() if figure is None else (figure,),
        notes=(f"{limit.why}.",) if limit.why else (),
    )


def _limit_figure(bill: Bill, limit: Limit) -> Figure | None:
    """The number that the rule compares; None for a rule without one."""
    first = next(iter(bill.unit_costs.known_chats), None)
    if limit.value is None:
        return None
    if limit.key == "policy.max_usd_per_month":
        return _high(bill, "USD a month", limit)
    if limit.key == "policy.max_usd_per_hour":
        return _high(bill, "USD an hour", limit)
    if first is None:
        return None
    return _chat_limit_figure(bill, limit, first)


def _high(bill: Bill, unit: str, limit: Limit) -> Figure:
    total = _total("total", "", bill.estimate.components)
    found = next(each for each in total.figures if each.unit == unit and "max" in each.name)
    return replace(found, name=f"compared with {limit.key}")


def _chat_limit_figure(bill: Bill, limit: Limit, row: ChatCost) -> Figure | None:
    assert limit.value is not None
    if limit.key == "policy.max_usd_per_chat":
        unit = "USD a chat"
        expression = chat_expression(bill, row, cluster_expression(bill, high=True))
    elif row.demand_per_day is not None and limit.value:
        unit = "share of the serving time"
        expression = f"1 - {number(row.demand_per_day)} / ({room_expression(bill, row)})"
    else:
        unit, expression = "share of the serving time", "0"
    return Figure(f"compared with {limit.key}", unit, expression, limit.value)


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
            yield Input(name, number(value), source)


def _preemption_figures(cost: PreemptionCost) -> Iterator[Figure]:
    nodes, slowdown = cost.losses.num_nodes, cost.losses.slowdown
    unit = "USD for an hour of useful work"
    if cost.on_demand_usd_per_hour is not None:
        rate = number(cost.on_demand_usd_per_hour / nodes)
        yield Figure("on-demand", unit, f"{rate} * {nodes}", cost.on_demand_usd_per_hour)
    if cost.preemptible_usd_per_hour is not None and slowdown is not None:
        assert cost.preemptible_node_usd_per_hour is not None
        rate = number(cost.preemptible_node_usd_per_hour)
        yield Figure(
            "preemptible",
            unit,
            f"{rate} * {nodes} * {number(slowdown.factor)}",
            cost.preemptible_usd_per_hour,
        )


def _measured(bill: Bill, run: RunCost) -> Explanation:
    total = bill.estimate
    hours = f"({number(run.duration_s)} / 3600)"
    return Explanation(
        item=LAST,
        title=f"Cost of {run.job}, job {run.job_id}",
        formula="USD a month of the cluster / hours a month x hours of the job",
        inputs=(
            Input("USD a month at min_nodes", number(total.monthly_low_usd), "explain total"),
            Input(
                "seconds of the job",
                number(run.duration_s),
                f"run record of job {run.job_id} on {run.device}, {run.date.isoformat()}",
            ),
        ),
        figures=(
            Figure(
                "whole cluster at min_nodes",
                "USD a run",
                f"{number(total.monthly_low_usd)} / {number(HOURS_PER_MONTH)} * {hours}",
                run.cluster_usd,
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
        "tokens",
        number(run.num_tokens),
        f"runs[{run.job}] x epochs, or counted; measured steps where train.max_steps is set",
    )
    yield Input("tokens a second", number(run.speed.tokens_per_s), str(run.speed))
    yield Input("nodes", str(run.num_nodes), f"jobs[{run.job}].nodes")
    rate = rates.node_usd_per_hour[run.worker.name]
    if rate is not None:
        yield Input("USD a node-hour", number(rate), f"explain nodes.workers[{run.worker.name}]")
    slowdown = None if run.disturbance is None else run.disturbance.slowdown
    if run.disturbance is not None and slowdown is not None:
        yield Input(
            "slowdown by preemptions",
            number(slowdown.factor),
            f"Daly 2006 at {run.disturbance.preemptions_per_node_day} a node-day: "
            f"{run.disturbance.source}",
        )


def _forecast_figures(bill: Bill, rates: RunRates, run: Forecast) -> Iterator[Figure]:
    hours = f"{number(run.num_tokens)} / {number(run.speed.tokens_per_s)} / 3600"
    slowdown = None if run.disturbance is None else run.disturbance.slowdown
    if slowdown is not None:
        hours = f"{hours} * {number(slowdown.factor)}"
    yield Figure("expected", "hours", hours, run.hours)
    rate = rates.node_usd_per_hour[run.worker.name]
    if rate is None or run.nodes_usd is None:
        return
    nodes = f"{number(rate)} * {run.num_nodes} * ({hours})"
    yield Figure("own nodes", "USD a run", nodes, run.nodes_usd)
    if run.cluster_share_usd is None:
        return
    around = f"({number(rates.control_plane_usd_per_hour)} + {number(rates.storage_usd_per_hour)})"
    most = max(run.num_nodes, sum(worker.min_nodes for worker in bill.spec.nodes.workers))
    yield Figure(
        "with its share of the rest of the cluster",
        "USD a run",
        f"{nodes} + {around} * ({hours}) * {run.num_nodes} / {most}",
        run.cluster_share_usd,
    )
