"""Explains from how many chats a day self-hosting is cheaper: break_even_items(bill).

The expressions are those of break_even.py with their numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from cost.api_prices import ApiPrice, ApiPriceBook
from cost.bill import Bill
from cost.break_even import BreakEven, break_even
from cost.chat import prompt_tokens
from cost.component import Input
from cost.explanation import Explanation, Figure, number
from cost.unit_costs import NotKnown


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
            inputs=tuple(_inputs(bill, price, rows[0])),
            figures=(_api_figure(bill, price, rows[0]), *_figures(rows)),
            notes=tuple(_notes(bill, rows)),
        )


def _inputs(bill: Bill, price: ApiPrice, row: BreakEven) -> Iterator[Input]:
    undated = "undated, read on " if price.is_undated else ""
    source = f"{price.source}, {undated}{price.date.isoformat()}"
    for name, usd in (
        ("USD for 1M input tokens", price.usd_per_1m_input),
        ("USD for 1M cached input tokens", price.usd_per_1m_cached_input),
        ("USD for 1M output tokens", price.usd_per_1m_output),
    ):
        if usd is not None:
            yield Input(name=name, value=number(usd), source=source)
    chat = bill.spec.chat
    yield Input(
        name="prompt tokens of a chat",
        value=str(prompt_tokens(chat)),
        source="chat.context_tokens x chat.turns",
    )
    for key, value in (("cached_share", chat.cached_share), ("output_tokens", chat.output_tokens)):
        yield Input(name=key.replace("_", " "), value=number(value), source=f"chat.{key}")
    room = f"explain chat[{row.scenario}]"
    yield Input(name="room, chats a day", value=number(row.room_per_day), source=room)


def _api_figure(bill: Bill, price: ApiPrice, row: BreakEven) -> Figure:
    chat, usd_in = bill.spec.chat, number(price.usd_per_1m_input)
    cached = price.usd_per_1m_cached_input
    prompt, share = prompt_tokens(chat), number(chat.cached_share)
    parts = (
        f"{prompt} * (1 - {share}) * {usd_in}",
        f"{prompt} * {share} * {usd_in if cached is None else number(cached)}",
        f"{chat.output_tokens} * {number(price.usd_per_1m_output)}",
    )
    return Figure(
        name="the API",
        unit="USD a chat",
        expression=f"({' + '.join(parts)}) / 1000000",
        value=row.api.usd,
    )


def _figures(rows: list[BreakEven]) -> Iterator[Figure]:
    for row in rows:
        ends = (
            ("", row.usd_per_day_low, row.chats_per_day_low),
            (" at max_nodes", row.usd_per_day_high, row.chats_per_day_high),
        )
        is_one = row.usd_per_day_low == row.usd_per_day_high
        for end, usd, chats in ends[:1] if is_one else ends:
            if chats is not None:
                yield Figure(
                    name=f"{row.view}, {row.billing}{end}",
                    unit="chats a day",
                    expression=f"{number(usd)} / {number(row.api.usd)}",
                    value=chats,
                )


def _notes(bill: Bill, rows: list[BreakEven]) -> Iterator[str]:
    if any(not row.is_reached for row in rows):
        yield "More chats a day than there is room for is never."
    if bill.unit_costs.is_lower_bound:
        yield "A line is not priced: self-hosting needs at least so many chats a day."
