"""Where a figure of the bill comes from: explain(bill, item) -> formula, inputs and arithmetic.

An item is a line (by its declaration or its printed name), a total, a chat, a comparison with an
API, a run or a rule of the policy. The bill is computed once more with traced numbers, so that each
figure brings its own expression (cost/traced.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from itertools import groupby

from cost.bill.bill import Bill
from cost.chat.break_even import break_even
from cost.chat.speeds import ChatCost, Speed
from cost.chat.unit_costs import NotKnown, RunCost, operating_text, speed_text
from cost.choose.limits import Limit, limits
from cost.prices.book import HOURS_PER_MONTH, ApiPrice, ApiPriceBook
from cost.report.layout import Explanation, Figure, Input, known_figures, span
from cost.resources.estimate import estimate, total_of
from cost.resources.lines import CostComponent, Scope
from cost.runs.forecast import Disturbance, Forecast, forecasts
from cost.runs.runs import SLOWDOWN_SOURCE, preemption_costs
from cost.traced import leaves, number, traced
from stacks.errors import UserError

_ALIASES = {
    "per_chat_usd": "chat", "serving_node_per_chat_usd": "chat", "per_1m_tokens_usd": "chat",
    "per_run_usd": "run", "hourly_usd": "total", "hourly_high_usd": "total",
    "monthly_low_usd": "total", "monthly_high_usd": "total", "subtotal_low_usd": "total.main",
    "subtotal_high_usd": "total.main", "total": "total", "subtotal": "total.main",
    "subtotal, also billed": "total.also", "$/h": "total", "$/month": "total", "$/run": "run",
    "$/1m tokens": "chat", "$/chat": "chat"
}  # fmt: skip
"""Keys of the output `cost`, names that are printed, and the item that explains each."""
_MOST_HINTS = 3


def explain(bill: Bill, item: str) -> Explanation:
    """The explanation of the item; a line also answers to the name that the bill prints."""
    found = {each.item: each for each in explanations(bill)}
    names = {line.name.lower(): line.id for line in bill.estimate.components}
    # `per_run_usd[finetune]` of the outputs is the item `run[finetune]`.
    runs = [(each, each.name.replace("per_run_usd[", "run[")) for each in bill.amounts]
    names |= {each.label.lower(): run for each, run in runs}
    names |= {each.name.lower(): run for each, run in runs}
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
    bill = _traced(bill)
    yield from map(_line, bill.estimate.components)
    yield from _totals(bill)
    yield from _chats(bill)
    yield from _break_evens(bill)
    yield from _runs(bill)
    yield from _preemptions(bill)
    yield from map(_limit, limits(bill))


def _traced(bill: Bill) -> Bill:
    """The same bill of numbers that know where they come from."""
    spec, book = traced(bill.spec), bill.estimate.book
    used = {
        sku: (leaves(each, f"{sku}: {each.source}, {each.dated}", usd=f"USD per {each.unit}"),)
        for sku, each in book.prices.items()
    }
    book = replace(book, readings={**book.readings, **used})
    return _TracedBill(
        estimate=estimate(spec, book),
        records=bill.records,
        problems=bill.problems,
        parts=bill.parts,
    )


class _TracedBill(Bill):
    """A bill whose speeds say where they are from, too."""

    @cached_property
    def chats(self) -> tuple[ChatCost, ...] | NotKnown:
        """The same rows."""
        rows = super().chats
        if isinstance(rows, NotKnown):
            return rows
        return tuple(replace(row, speed=_traced_speed(row)) for row in rows)


def _traced_speed(row: ChatCost) -> Speed:
    return leaves(
        row.speed,
        speed_text(row),
        output_tokens_per_s="output tokens a second",
        prefill_tokens_per_s=f"prompt tokens read a second, {row.speed.prefill_basis}",
    )


def _line(line: CostComponent) -> Explanation:
    low, high, unit = line.low_usd, line.high_usd, "USD a month"
    figures = known_figures(*([("", unit, low)] if low == high else _ends(low, high, unit)))
    return Explanation(
        item=line.id,
        title=f"{line.section}: {line.name}, {line.size}",
        figures=figures,
        notes=(f"Config keys: {', '.join(line.keys)}.",) if line.keys else (),
        words="" if figures else f"UNPRICED: {line.unknown}",
    )


def _totals(bill: Bill) -> Iterator[Explanation]:
    name, lines = bill.spec.name, bill.estimate.components
    yield _total("total", f"Total of {name}", lines)
    for item, scope in (("total.main", Scope.MAIN), ("total.also", Scope.ALSO)):
        of_scope = tuple(line for line in lines if line.scope is scope)
        if of_scope:
            yield _total(item, f"Lines of {name}: {scope}", of_scope)


def _total(item: str, title: str, lines: tuple[CostComponent, ...]) -> Explanation:
    total = total_of(lines)
    return Explanation(
        item=item,
        title=title,
        words="sum of the lines; an hour is a month / 730 h",
        figures=tuple(
            Figure(name, unit, value)
            for name, usd in (("at min_nodes", total.low_usd), ("at max_nodes", total.high_usd))
            for unit, value in (("USD a month", usd), ("USD an hour", usd / HOURS_PER_MONTH))
        ),
        others=tuple(
            Input(line.name, span(number(low), number(high)), f"explain {line.id}")
            for line in lines
            if (low := line.low_usd) is not None and (high := line.high_usd) is not None
        ),
        notes=tuple(
            f"Not priced, so the total is a lower bound: {line.name}."
            for line in lines
            if line.unknown is not None
        ),
    )


def _ends(
    low: Decimal | None, high: Decimal | None, unit: str, of: str = ""
) -> list[tuple[str, str, Decimal | None]]:
    return [(f"{of}at min_nodes", unit, low), (f"{of}at max_nodes", unit, high)]


_UNITS = {
    "policy.max_usd_per_month": "USD a month",
    "policy.max_usd_per_hour": "USD an hour",
    "policy.max_usd_per_chat": "USD a chat",
    "policy.max_idle_share": "share of the serving time",
}


def _limit(limit: Limit) -> Explanation:
    kept = "not known" if limit.is_kept is None else "kept" if limit.is_kept else "BROKEN"
    return Explanation(
        item=limit.key,
        title=f"{limit.key}: {kept}",
        words=f"{limit.got}, allowed is {limit.allowed}",
        others=() if limit.most is None else (Input("limit", number(limit.most), limit.key),),
        figures=known_figures(
            (f"compared with {limit.key}", _UNITS.get(limit.key, ""), limit.value)
        ),
        notes=(f"{limit.why}.",) if limit.why else (),
    )


def _chats(bill: Bill) -> Iterator[Explanation]:
    """The first scenario, which the output `cost.per_chat_usd` names, then each under its name."""
    rows = bill.chats
    if isinstance(rows, NotKnown):
        yield Explanation(item="chat", title="Cost per chat", words="NOT KNOWN", notes=(str(rows),))
        return
    yield _chat(bill, rows[0], "chat")
    for row in rows:
        yield _chat(bill, row, f"chat[{row.speed.scenario}]")


def _chat(bill: Bill, row: ChatCost, item: str) -> Explanation:
    cluster = "whole cluster "
    return Explanation(
        item=item,
        title=f"Cost per chat: {row.speed.scenario}",
        figures=known_figures(
            *_ends(row.cluster_low_usd, row.cluster_high_usd, "USD a chat", cluster),
            (f"{cluster}at min_nodes", "USD for 1M output tokens", row.cluster_usd_per_1m_tokens),
            ("serving nodes alone", "USD a chat", row.serving_usd),
            ("room", "chats a day", row.chats_per_day),
            ("one answer", "seconds", row.answer_s),
        ),
        notes=tuple(_chat_notes(bill, row)),
    )


def _chat_notes(bill: Bill, row: ChatCost) -> Iterator[str]:
    if text := operating_text(row, bill.spec.chat):
        yield f"{text}."
    if bill.hourly.cluster_low_usd != bill.estimate.total.hourly_low_usd:
        yield (
            "The cluster at min_nodes lacks serving nodes: their price is added to what its chats "
            "pay an hour."
        )
    if bill.estimate.total.is_lower_bound:
        yield "A line of the bill has no price: whole-cluster figures are lower bounds."


def _break_evens(bill: Bill) -> Iterator[Explanation]:
    """Every scenario against every hosted model: `break-even[SCENARIO][MODEL]`."""
    if not bill.spec.chat.api_models:
        return
    api = ApiPriceBook.load()
    api = replace(api, prices={name: _traced_api(each) for name, each in api.prices.items()})
    found = break_even(bill, api)
    pairs = groupby(found.rows, key=lambda row: (row.chat.speed.scenario, row.api))
    for (scenario, cost), group in pairs:
        rows = list(group)
        room, unit = number(rows[0].chat.chats_per_day), "chats a day"
        figures: list[tuple[str, str, Decimal | None]] = [("the API", "USD a chat", cost.usd)]
        for row in rows:
            name = f"{row.view}, {row.billing}"
            figures.append((name, unit, row.chats_per_day_low))
            if row.usd_per_day_low != row.usd_per_day_high:
                figures.append((f"{name} at max_nodes", unit, row.chats_per_day_high))
        notes: list[str] = []
        if any(not row.is_reached for row in rows):
            notes.append("More chats a day than there is room for is never.")
        if bill.estimate.total.is_lower_bound:
            notes.append("A line is not priced: self-hosting needs at least so many chats a day.")
        yield Explanation(
            item=f"break-even[{scenario}][{cost.model}]",
            title=f"Break-even of {scenario} against {cost.model}",
            words="USD a day of self-hosting / USD a chat of the API = chats a day",
            figures=known_figures(*figures),
            others=(Input("room, chats a day", room, f"explain chat[{scenario}]"),),
            notes=tuple(notes),
        )


def _traced_api(price: ApiPrice) -> ApiPrice:
    undated = "undated, read on " if price.is_undated else ""
    return leaves(
        price,
        f"{price.source}, {undated}{price.date.isoformat()}",
        usd_per_1m_input="USD for 1M input tokens",
        usd_per_1m_cached_input="USD for 1M cached input tokens",
        usd_per_1m_output="USD for 1M output tokens",
    )


def _runs(bill: Bill) -> Iterator[Explanation]:
    """The last measured run, `run`, then the forecast of every job that trains."""
    yield _last_run(bill.run)
    for run in forecasts(bill.estimate, bill.records):
        is_known = isinstance(run, Forecast)
        yield Explanation(
            item=f"run[{run.job}]",
            title=f"Forecast of {run.job}",
            words="tokens / tokens a second = hours; hours x nodes x USD a node-hour",
            figures=known_figures(
                ("expected", "hours", run.hours),
                ("own nodes", "USD a run", run.nodes_usd),
                (
                    "with its share of the rest of the cluster",
                    "USD a run",
                    run.cluster_share_usd,
                ),
            )
            if is_known
            else (),
            notes=tuple(f"{note}." for note in run.notes) if is_known else (f"{run}.",),
        )


def _last_run(run: RunCost | NotKnown) -> Explanation:
    if isinstance(run, NotKnown):
        title = "Cost of the last training run"
        return Explanation(item="run", title=title, words="NOT KNOWN", notes=(str(run),))
    return Explanation(
        item="run",
        title=f"Cost of {run.job}, job {run.job_id}, on {run.device}",
        words="USD a month of the cluster / hours a month x hours of the job",
        figures=(Figure("whole cluster at min_nodes", "USD a run", run.cluster_usd),),
    )


def _preemptions(bill: Bill) -> Iterator[Explanation]:
    """What an hour of useful work costs on preemptible nodes: `preemption[JOB]`."""
    unit = "USD for an hour of useful work"
    for cost in preemption_costs(bill):
        yield Explanation(
            item=f"preemption[{cost.job}]",
            title=f"Preemptible against on-demand nodes of {cost.job}",
            words="M = 86400 s / (preemptions x nodes), t = Daly's interval; slowdown = "
            "M e^(R/M) (e^((t + d)/M) - 1) / t; USD a node-hour x nodes x slowdown",
            figures=known_figures(
                ("on-demand", unit, cost.on_demand_usd_per_hour),
                ("preemptible", unit, cost.preemptible_usd_per_hour),
            ),
            others=tuple(_preemption_inputs(cost.job, cost.losses)),
            notes=() if cost.reason is None else (f"NOT KNOWN: {cost.reason}.",),
        )


def _preemption_inputs(job: str, losses: Disturbance) -> Iterator[Input]:
    """What goes through roots and powers, which no expression shows."""
    stall, slowdown = losses.stall, losses.slowdown
    day = "" if stall.measured_on is None else f", measured on {stall.measured_on.isoformat()}"
    daly, young = "J. T. Daly, FGCS 22(3), 2006", "J. W. Young, CACM 17(9), 1974"
    for name, value, source in (
        ("preemptions a node-day", losses.preemptions_per_node_day, losses.source),
        ("nodes", losses.num_nodes, f"jobs[{job}].nodes"),
        ("R: seconds to restart", losses.restart_s, losses.source),
        ("d: seconds of a checkpoint", stall.seconds, f"{stall.source}{day}"),
        ("M: seconds between preemptions", losses.mtbf_s, "86400 / (preemptions x nodes)"),
        ("t: seconds between checkpoints", losses.interval_s, f"{daly}, equation 37"),
        ("the same to first order", losses.young_s, f"{young}: sqrt(2 d M)"),
        ("slowdown", None if slowdown is None else slowdown.factor, SLOWDOWN_SOURCE),
    ):
        if value is not None:
            yield Input(name, number(value), source)
