"""Lays the break-even against APIs out: break_even_tables(found, units), its notes and its part.

Owns their words. Computes nothing but roundings; what the figures mean is in break_even.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
from itertools import groupby
from typing import Final

from cost.api_prices import ApiPriceBook
from cost.break_even import ApiCost, BreakEven, BreakEvens, View, break_even
from cost.chat import ChatCost
from cost.chat_table import MISSES, percent
from cost.layout import GAP, UNKNOWN, Table, small_usd_text, span
from cost.part import Inputs, Part
from cost.unit_costs import NotKnown, UnitCosts

NEVER: Final = "never"
_NAME: Final = "break_even"
UTILISATIONS: Final = (Decimal("0.1"), Decimal("0.25"), Decimal("0.5"), Decimal("0.75"), Decimal(1))


def break_even_part(inputs: Inputs) -> tuple[Part, ...]:
    """The comparison with the models that the stack names, and the charts of its chats."""
    units, models = inputs.unit_costs, inputs.spec.chat.api_models
    if isinstance(units.chats, NotKnown):
        return ()
    if not models:
        return (Part(name=_NAME, draw_figures=lambda: _charts(units, ())),)
    found = break_even(inputs.spec, inputs.estimate, units, ApiPriceBook.load(), book=inputs.book)
    if isinstance(found, NotKnown):
        return ()
    apis = found.apis
    return (
        Part(
            name=_NAME,
            tables=break_even_tables(found, units),
            notes=tuple(break_even_notes(found, units)),
            draw_figures=lambda: _charts(units, apis),
            plain=plain_break_even(found),
        ),
    )


def _charts(units: UnitCosts, apis: Sequence[ApiCost]) -> tuple[str, ...]:
    # Only an HTML page draws: a preview has 100 ms for all cost work.
    from cost.chat_charts import chat_charts

    return chat_charts(units, apis)


def break_even_tables(found: BreakEvens, units: UnitCosts) -> tuple[Table, ...]:
    """Chats a day from which self-hosting is cheaper, then the cost of a chat by utilisation."""
    chats = units.chats
    if isinstance(chats, NotKnown) or not found.rows:
        return ()
    bound = ", at least" if units.is_lower_bound else ""
    return (_meetings(found, bound), _bands(found, chats, bound))


def break_even_notes(found: BreakEvens, units: UnitCosts) -> list[str]:
    """What the tables rest on and why a model or a row is missing."""
    notes = [f"Break-even: {reason}." for reason in found.unpriced]
    if any(not row.is_reached for row in found.rows):
        notes.append(
            f"{NEVER}: the room of the serving nodes (Chats/Day) ends first; even full, a chat "
            "costs more than the API asks."
        )
        notes += _more_nodes(found, "at least " if units.is_lower_bound else "")
    if found.rows:
        notes.append(
            "An API's model is another model: the tables compare dollars for the same number of "
            "tokens, not answers."
        )
    notes += [
        f"{api.model}: {small_usd_text(api.usd)} a chat, {_day(api)}: {api.source}."
        for api in found.apis
    ]
    return notes


def plain_break_even(found: BreakEvens) -> dict[str, object]:
    """The comparisons as plain values: money as text, None where there is none."""
    return {
        "rows": [
            {
                "scenario": row.scenario,
                "api_model": row.api.model,
                "api_usd_per_chat": small_usd_text(row.api.usd).removeprefix("$"),
                "billing": str(row.billing),
                "view": str(row.view),
                "chats_per_day_low": _whole(row.chats_per_day_low),
                "chats_per_day_high": _whole(row.chats_per_day_high),
                "room_per_day": int(row.room_per_day),
                "is_reached": row.is_reached,
                "meets_slo": row.meets_slo,
            }
            for row in found.rows
        ],
        "unpriced": list(found.unpriced),
    }


def _meetings(found: BreakEvens, bound: str) -> Table:
    rows: list[tuple[str, ...]] = []
    for (scenario, meets_slo), of_scenario in groupby(
        found.rows, key=lambda row: (row.scenario, row.meets_slo)
    ):
        name = f"{scenario}, {MISSES}" if meets_slo is False else scenario
        rows.append((name, "", "", "", "", "", ""))
        keyed = groupby(of_scenario, key=lambda row: (row.api, row.billing))
        for (api, billing), group in keyed:
            views = {row.view: row for row in group}
            rows.append(
                (
                    f"{GAP}{api.model}",
                    str(billing),
                    small_usd_text(api.usd),
                    *_meeting(views.get(View.CLUSTER)),
                    *_meeting(views.get(View.SERVING)),
                )
            )
    return Table(
        title=f"Break-even{bound}: self-hosting is cheaper from so many chats a day",
        headings=("Against", "Nodes", "API/Chat", "Cluster From", "Load", "Serving From", "Load"),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _meeting(row: BreakEven | None) -> tuple[str, str]:
    """Chats a day and the utilisation that they are, or that there are none."""
    if row is None:
        return UNKNOWN, UNKNOWN
    if not row.is_reached or row.utilisation is None:
        return NEVER, "-"
    low, high = (
        f"{_whole(chats):,}" if row.fits(chats) else NEVER
        for chats in (row.chats_per_day_low, row.chats_per_day_high)
    )
    return span(low, high, ".."), percent(row.utilisation)


def _bands(found: BreakEvens, chats: tuple[ChatCost, ...], bound: str) -> Table:
    """Dollars a chat at parts of the room, as billed now, beside what the APIs ask."""
    rows: list[tuple[str, ...]] = []
    now = found.rows[0].billing
    for chat in chats:
        of_chat = {
            row.view: row
            for row in found.rows
            if row.scenario == chat.speed.scenario and row.billing is now
        }
        for view, row in of_chat.items():
            usd = [row.self_hosted_usd(share * row.room_per_day) for share in UTILISATIONS]
            rows.append((chat.speed.scenario, str(view), *map(small_usd_text, usd)))
    rows += [
        (api.model, "API", *[small_usd_text(api.usd)] * len(UTILISATIONS)) for api in found.apis
    ]
    return Table(
        title=f"Cost per chat{bound} by utilisation of the serving nodes",
        headings=("Scenario", "Who Pays", *(percent(share) for share in UTILISATIONS)),
        rows=tuple(rows),
        num_text_columns=2,
    )


def _more_nodes(found: BreakEvens, bound: str) -> list[str]:
    """Where the cluster would win if more of the nodes that it pays for served chats."""
    most = found.paid_serving_nodes
    if most is None:
        return []
    return [
        f"{row.scenario} against {row.api.model}, {row.billing}: the whole cluster wins from "
        f"{bound}{_whole(row.chats_per_day_low):,} chats a day when {row.serving_nodes_needed} of "
        f"its {most} nodes serve (chat.serving_nodes)."
        for row in found.rows
        if row.view is View.CLUSTER
        and not row.is_reached
        and row.serving_nodes_needed is not None
        and row.serving_nodes_needed <= most
    ]


def _day(api: ApiCost) -> str:
    day = api.date.isoformat()
    return f"undated price, read on {day}" if api.is_undated else f"price of {day}"


def _whole(chats: Decimal | None) -> int | None:
    """The first whole number of chats at which self-hosting costs no more."""
    return None if chats is None else int(chats.to_integral_value(ROUND_CEILING))
