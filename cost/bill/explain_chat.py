"""Explains what a chat costs, and from how many chats a day self-hosting is cheaper than an API.

The expressions are those of cost/chat with its numbers in place; a test evaluates each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost.bill.bill import Bill
from cost.chat.break_even import BreakEven, break_even
from cost.chat.speeds import ChatCost, Speed, prompt_tokens, serving_workers
from cost.chat.table import operating_text, speed_text
from cost.chat.unit_costs import NotKnown
from cost.prices.api_prices import ApiPrice, ApiPriceBook
from cost.prices.price import HOURS_PER_MONTH
from cost.report.explanation import Explanation, Figure, number, rate_expression
from cost.resources.component import Input, Section
from stacks.spec.cost import ChatSpec

FIRST = "chat"
"""Item of the first scenario, which the output `cost.per_chat_usd` names."""


def chat_items(bill: Bill) -> Iterator[Explanation]:
    """The first scenario as `chat`, then every scenario under its name."""
    rows = bill.unit_costs.chats
    if isinstance(rows, NotKnown):
        yield Explanation(
            item=FIRST, title="Cost per chat", formula="NOT KNOWN", notes=(str(rows),)
        )
        return
    for item, row in ((FIRST, rows[0]), *((f"chat[{row.speed.scenario}]", row) for row in rows)):
        yield Explanation(
            item=item,
            title=f"Cost per chat: {row.speed.scenario}",
            formula=_formula(row),
            inputs=tuple(_inputs(bill, row)),
            figures=tuple(_figures(bill, row)),
            notes=tuple(_notes(bill, row)),
        )


def chat_expression(bill: Bill, row: ChatCost, usd_per_hour: str) -> str:
    """US dollars a chat when chats pay so much an hour."""
    chat = bill.spec.chat
    if _pays_for_idle_time(row):
        assert row.demand_per_day is not None
        return f"{usd_per_hour} * 24 / {number(row.demand_per_day)}"
    tokens = f"{speed_expression(chat, row.speed)} * {chat.serving_nodes} * 3600"
    return f"{usd_per_hour} * {chat.output_tokens} / ({tokens})"


def room_expression(bill: Bill, row: ChatCost) -> str:
    """Chats a day that the serving nodes have room for."""
    chat = bill.spec.chat
    speed = speed_expression(chat, row.speed)
    return f"{speed} * 86400 / {chat.output_tokens} * {chat.serving_nodes}"


def speed_expression(chat: ChatSpec, speed: Speed) -> str:
    """Output tokens a second of one node, reading included where it counts."""
    prefill, writes = speed.prefill_tokens_per_s, number(speed.output_tokens_per_s)
    if prefill is None:
        return writes
    tokens = chat.output_tokens
    reads = f"{prompt_tokens(chat)} * (1 - {number(chat.cached_share)}) / {number(prefill)}"
    return f"({tokens} / ({tokens} / {writes} + {reads}))"


def cluster_expression(bill: Bill, *, high: bool) -> str:
    """US dollars an hour of the cluster that chats are charged with."""
    total, hourly = bill.estimate, bill.unit_costs.hourly
    monthly = total.monthly_high_usd if high else total.monthly_low_usd
    if not high and hourly.cluster_low_usd != total.hourly_low_usd:
        return number(hourly.cluster_low_usd)
    return f"({number(monthly)} / {number(HOURS_PER_MONTH)})"


def _pays_for_idle_time(row: ChatCost) -> bool:
    return row.demand_per_day is not None and row.demand_per_day < row.chats_per_day


def _formula(row: ChatCost) -> str:
    if _pays_for_idle_time(row):
        return "USD an hour x 24 h / chats asked for a day"
    return "USD an hour x output tokens of a chat / output tokens an hour of the serving nodes"


def _inputs(bill: Bill, row: ChatCost) -> Iterator[Input]:
    chat, total = bill.spec.chat, bill.estimate
    month = f"{number(HOURS_PER_MONTH)} h; explain total"
    yield Input(
        "USD a month of the cluster",
        f"{number(total.monthly_low_usd)}..{number(total.monthly_high_usd)}",
        month,
    )
    yield Input("output tokens a second", number(row.speed.output_tokens_per_s), speed_text(row))
    for key, value in (
        ("output_tokens", chat.output_tokens),
        ("context_tokens", chat.context_tokens),
        ("turns", chat.turns),
        ("serving_nodes", chat.serving_nodes),
    ):
        yield Input(key.replace("_", " "), str(value), f"chat.{key}")
    if row.speed.prefill_tokens_per_s is not None:
        yield Input(
            "prompt tokens read a second",
            number(row.speed.prefill_tokens_per_s),
            str(row.speed.prefill_basis),
        )
        yield Input("cached share", number(chat.cached_share), "chat.cached_share")
    if chat.chats_per_day is not None:
        yield Input("chats asked for a day", str(chat.chats_per_day), "chat.chats_per_day")


def _figures(bill: Bill, row: ChatCost) -> Iterator[Figure]:
    chat = bill.spec.chat
    low = chat_expression(bill, row, cluster_expression(bill, high=False))
    yield Figure("whole cluster at min_nodes", "USD a chat", low, row.cluster_low_usd)
    yield Figure(
        "whole cluster at max_nodes",
        "USD a chat",
        chat_expression(bill, row, cluster_expression(bill, high=True)),
        row.cluster_high_usd,
    )
    yield Figure(
        "whole cluster at min_nodes",
        "USD for 1M output tokens",
        f"{low} * 1000000 / {chat.output_tokens}",
        row.cluster_usd_per_1m_tokens,
    )
    serving = _serving_expression(bill)
    if serving is not None and row.serving_usd is not None:
        yield Figure(
            "serving nodes alone",
            "USD a chat",
            chat_expression(bill, row, serving),
            row.serving_usd,
        )
    yield Figure("room", "chats a day", room_expression(bill, row), row.chats_per_day)
    answer = f"({chat.output_tokens} / {chat.turns}) / {speed_expression(chat, row.speed)}"
    yield Figure("one answer", "seconds", f"{row.speed.batch_size} * {answer}", row.answer_s)


def _serving_expression(bill: Bill) -> str | None:
    """US dollars an hour of the serving nodes, without their disks."""
    names = [worker.name for worker in serving_workers(bill.spec)]
    for line in bill.estimate.components:
        if line.section is Section.COMPUTE and line.nodeset in names and line.terms:
            return f"{rate_expression(line)} * {bill.spec.chat.serving_nodes}"
    return None


def _notes(bill: Bill, row: ChatCost) -> Iterator[str]:
    if text := operating_text(row, bill.spec.chat):
        yield f"{text}."
    if bill.unit_costs.hourly.cluster_low_usd != bill.estimate.hourly_low_usd:
        yield (
            "The cluster at min_nodes lacks serving nodes: their price is added to what its chats "
            "pay an hour."
        )
    if bill.unit_costs.is_lower_bound:
        yield "A line of the bill has no price: whole-cluster figures are lower bounds."


def break_even_items(bill: Bill) -> Iterator[Explanation]:
    """Every scenario against every hosted model: `break-even[SCENARIO][MODEL]`."""
    if not bill.spec.chat.api_models:
        return
    book = ApiPriceBook.load()
    found = break_even(bill.spec, bill.estimate, bill.unit_costs, book, book=bill.book)
    if isinstance(found, NotKnown):
        return
    pairs: dict[tuple[str, str], list[BreakEven]] = {}
    for row in found.rows:
        pairs.setdefault((row.scenario, row.api.model), []).append(row)
    for (scenario, model), rows in pairs.items():
        price = book.find(model)
        assert isinstance(price, ApiPrice)
        yield Explanation(
            item=f"break-even[{scenario}][{model}]",
            title=f"Break-even of {scenario} against {model}",
            formula="USD a day of self-hosting / USD a chat of the API = chats a day",
            inputs=tuple(_even_inputs(bill, price, rows[0])),
            figures=(_api_figure(bill, price, rows[0]), *_even_figures(rows)),
            notes=tuple(_even_notes(bill, rows)),
        )


def _even_inputs(bill: Bill, price: ApiPrice, row: BreakEven) -> Iterator[Input]:
    undated = "undated, read on " if price.is_undated else ""
    source = f"{price.source}, {undated}{price.date.isoformat()}"
    for name, usd in (
        ("USD for 1M input tokens", price.usd_per_1m_input),
        ("USD for 1M cached input tokens", price.usd_per_1m_cached_input),
        ("USD for 1M output tokens", price.usd_per_1m_output),
    ):
        if usd is not None:
            yield Input(name, number(usd), source)
    chat = bill.spec.chat
    yield Input(
        "prompt tokens of a chat", str(prompt_tokens(chat)), "chat.context_tokens x chat.turns"
    )
    for key, value in (("cached_share", chat.cached_share), ("output_tokens", chat.output_tokens)):
        yield Input(key.replace("_", " "), number(value), f"chat.{key}")
    room = f"explain chat[{row.scenario}]"
    yield Input("room, chats a day", number(row.room_per_day), room)


def _api_figure(bill: Bill, price: ApiPrice, row: BreakEven) -> Figure:
    chat, usd_in = bill.spec.chat, number(price.usd_per_1m_input)
    cached = price.usd_per_1m_cached_input
    prompt, share = prompt_tokens(chat), number(chat.cached_share)
    parts = (
        f"{prompt} * (1 - {share}) * {usd_in}",
        f"{prompt} * {share} * {usd_in if cached is None else number(cached)}",
        f"{chat.output_tokens} * {number(price.usd_per_1m_output)}",
    )
    return Figure("the API", "USD a chat", f"({' + '.join(parts)}) / 1000000", row.api.usd)


def _even_figures(rows: list[BreakEven]) -> Iterator[Figure]:
    for row in rows:
        ends = (
            ("", row.usd_per_day_low, row.chats_per_day_low),
            (" at max_nodes", row.usd_per_day_high, row.chats_per_day_high),
        )
        is_one = row.usd_per_day_low == row.usd_per_day_high
        for end, usd, chats in ends[:1] if is_one else ends:
            if chats is not None:
                yield Figure(
                    f"{row.view}, {row.billing}{end}",
                    "chats a day",
                    f"{number(usd)} / {number(row.api.usd)}",
                    chats,
                )


def _even_notes(bill: Bill, rows: list[BreakEven]) -> Iterator[str]:
    if any(not row.is_reached for row in rows):
        yield "More chats a day than there is room for is never."
    if bill.unit_costs.is_lower_bound:
        yield "A line is not priced: self-hosting needs at least so many chats a day."
