"""Where a figure of the bill comes from: explain(bill, item) -> formula, inputs and arithmetic.

An item is a line (by its declaration or its printed name), a total, a chat, a run or a rule of the
policy. The arithmetic is an expression of plain numbers that gives the figure, digit for digit.
Owns which items there are; the figures themselves are those of the bill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from cost.bill import Bill
from cost.chat import ChatCost
from cost.component import CostComponent, Input, Scope
from cost.explain_break_even import break_even_items
from cost.explain_chat import chat_expression, chat_items, cluster_expression, room_expression
from cost.explain_run import preemption_items, run_items
from cost.explanation import Explanation, Figure, added, line_expression, number
from cost.limits import Limit, limits
from cost.price import HOURS_PER_MONTH
from cost.unit_costs import NotKnown
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
        yield Figure(
            name=name,
            unit="USD a month",
            expression=line_expression(line, high=is_high),
            value=value,
        )


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
            Figure(name=name, unit="USD a month", expression=expression, value=monthly),
            Figure(
                name=name,
                unit="USD an hour",
                expression=f"({expression}) / {number(HOURS_PER_MONTH)}",
                value=monthly / HOURS_PER_MONTH,
            ),
        ]
    unpriced = [line for line in lines if line.unknown is not None]
    return Explanation(
        item=item,
        title=title,
        formula="sum of the lines; an hour is a month / 730 h",
        inputs=tuple(
            Input(
                name=line.name,
                value=number(low) if low == high else f"{number(low)}..{number(high)}",
                source=f"explain {line.id}",
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
        inputs=()
        if limit.most is None
        else (Input(name="limit", value=number(limit.most), source=limit.key),),
        figures=() if figure is None else (figure,),
        notes=(f"{limit.why}.",) if limit.why else (),
    )


def _limit_figure(bill: Bill, limit: Limit) -> Figure | None:
    """The number that the rule compares; None for a rule without one."""
    rows = bill.unit_costs.chats
    first = None if isinstance(rows, NotKnown) else rows[0]
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
    return Figure(
        name=f"compared with {limit.key}", unit=unit, expression=expression, value=limit.value
    )
