"""Self-hosting is cheaper from the chats a day at which both cost the same, or never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.bill.bill import bill
from cost.chat.break_even import (
    ApiCost,
    BreakEven,
    BreakEvens,
    api_usd_per_chat,
    break_even,
    break_even_notes,
    break_even_part,
    break_even_tables,
    hourly_by_billing,
    plain_break_even,
)
from cost.chat.speeds import Basis, ChatCost, HourlyCost, Speed, View
from cost.chat.unit_costs import UnitCosts
from cost.prices.book import ApiPrice, ApiPriceBook, PriceBook
from cost.report.layout import WIDTH, Format, Report, render_report
from cost.resources.estimate import estimate
from stacks.errors import Level
from stacks.spec import StackSpec
from stacks.spec.cost import AssumedSpeedSpec, ChatSpec
from stacks.spec.nodes import Billing
from tests import SHIPPED
from tests.nightly import law
from tests.unit.cost.conftest import Priced, unit_costs
from tests.unit.cost.policies import inputs_of

DAY = date(2026, 11, 21)
CHAT = ChatSpec(model="m", context_tokens=8000, output_tokens=2000)


def price(usd_in: str, usd_out: str, cached: str | None = None) -> ApiPrice:
    return ApiPrice(
        model="a/b",
        usd_per_1m_input=Decimal(usd_in),
        usd_per_1m_cached_input=None if cached is None else Decimal(cached),
        usd_per_1m_output=Decimal(usd_out),
        source="list",
        date=DAY,
    )


def book(**prices: ApiPrice) -> ApiPriceBook:
    """A book with these models, `a/NAME`."""
    return ApiPriceBook(
        prices=MappingProxyType({f"a/{name}": entry for name, entry in prices.items()}),
    )


def compared(
    priced: Callable[[str], Priced],
    prices: ApiPriceBook,
    *,
    stack: str = "l40s-dev",
    change: Callable[[StackSpec], StackSpec] = lambda spec: spec,
    **chat: Any,
) -> tuple[BreakEvens, UnitCosts]:
    """The break-even of a stack against every model of the book."""
    spec = change(priced(stack)[0])
    models = tuple(prices.prices)
    spec = replace(spec, chat=replace(spec.chat, **{"api_models": models, **chat}))
    inputs = inputs_of(spec)
    return break_even(inputs, prices), inputs


def five_in_one_nodeset(spec: StackSpec) -> StackSpec:
    """The stack with all its workers in the nodeset that serves."""
    worker = replace(spec.nodes.workers[0], min_nodes=5, max_nodes=5)
    return replace(spec, nodes=replace(spec.nodes, workers=(worker,)))


def row_of(found: BreakEvens, scenario: str, view: View) -> BreakEven:
    (row,) = [
        row
        for row in found.rows
        if (row.chat.speed.scenario, row.view) == (scenario, view)
        and row.billing is Billing.ON_DEMAND
    ]
    return row


@pytest.mark.parametrize(
    ("chat", "entry", "usd"),
    [
        # 8,000 at 0.15 and 2,000 at 0.60 a million.
        ({}, price("0.15", "0.60"), "0.0024"),
        ({"turns": 5}, price("0.15", "0.60"), "0.0072"),
        ({"cached_share": Decimal("0.5")}, price("0.15", "0.60", "0.075"), "0.0021"),
        # No price of its own for cached input: it costs what other input does.
        ({"cached_share": Decimal("0.5")}, price("0.15", "0.60"), "0.0024"),
        ({"cached_share": Decimal(1)}, price("0.15", "0.60", "0"), "0.0012"),
    ],
)
def test_a_chat_costs_its_tokens_at_an_api(chat: dict[str, Any], entry: ApiPrice, usd: str):
    assert api_usd_per_chat(replace(CHAT, **chat), entry) == Decimal(usd)


def test_self_hosting_wins_from_dollars_a_day_over_dollars_a_chat(
    priced: Callable[[str], Priced],
):
    """18,116.0796 a month are 595.597 a day; at a dollar a chat that is 595.6 chats of 8,640."""
    found, _ = compared(priced, book(dear=price("0", "500")))
    row = row_of(found, "Optimized Target", View.CLUSTER)
    assert row.chats_per_day_low is not None
    assert row.chats_per_day_low.quantize(Decimal("0.001")) == Decimal("595.597")
    assert row.is_reached
    assert row.self_hosted_usd(row.chats_per_day_low) == row.api.usd == 1
    assert row.utilisation is not None
    assert row.utilisation.quantize(Decimal("0.0001")) == Decimal("0.0689")


def test_where_the_room_ends_first_self_hosting_never_wins(priced: Callable[[str], Priced]):
    """164 chats a day at 3.63 dollars each never meet one dollar a chat."""
    found, units = compared(priced, book(dear=price("0", "500")))
    row = row_of(found, "Single Batch Finetuned", View.CLUSTER)
    assert not row.is_reached
    assert row.self_hosted_usd(row.chat.chats_per_day) > row.api.usd
    text = render_report(
        Report(
            heading=None,
            tables=break_even_tables(found, units),
            notes=tuple(break_even_notes(found, units)),
        ),
        Format.TABLE,
    )
    assert "never: the room of the serving nodes" in " ".join(text.split())
    assert all(len(line) <= WIDTH for line in text.splitlines())


def test_nodes_that_are_paid_for_anyway_may_turn_never_into_a_number(
    priced: Callable[[str], Priced],
):
    """Four nodes have room for 656 chats a day; 596 are enough, and the cluster has five."""
    found, units = compared(
        priced,
        book(dear=price("0", "500")),
        change=five_in_one_nodeset,
        serving_nodeset="worker",
    )
    assert found.paid_serving_nodes == 5
    notes = " ".join(break_even_notes(found, units))
    assert (
        "Single Batch Finetuned against a/dear, on-demand: the whole cluster wins from 596 chats a "
        "day when 4 of its 5 nodes serve" in notes
    )
    lines = (*units.estimate.components, replace(units.estimate.components[0], rate=None))
    missing = replace(units, estimate=replace(units.estimate, components=lines))
    assert "wins from at least 596 chats" in " ".join(break_even_notes(found, missing))
    enough, _ = compared(
        priced,
        book(dear=price("0", "500")),
        change=five_in_one_nodeset,
        serving_nodeset="worker",
        serving_nodes=4,
    )
    assert row_of(enough, "Single Batch Finetuned", View.CLUSTER).is_reached


def test_a_free_api_is_never_beaten(priced: Callable[[str], Priced]):
    found, _ = compared(priced, book(free=price("0", "0")))
    assert not any(row.is_reached for row in found.rows)
    assert {row.chats_per_day_low for row in found.rows} == {None}
    assert plain_break_even(found)["rows"]


def test_a_model_without_a_price_is_named_and_has_no_row(priced: Callable[[str], Priced]):
    found, units = compared(priced, book(b=price("1", "1")), api_models=("a/x", "a/b"))
    assert {row.api.model for row in found.rows} == {"a/b"}
    assert "no API price of 'a/x' is known" in " ".join(break_even_notes(found, units))


def test_a_scenario_that_misses_its_promise_says_so_where_it_is_compared(
    priced: Callable[[str], Priced],
):
    """Else the table would recommend an answer that nobody waits for."""
    found, units = compared(priced, book(b=price("1", "1")), max_answer_s=Decimal(60))
    names = [row[0] for row in break_even_tables(found, units)[0].rows if not any(row[1:])]
    assert names == [
        "Single Batch Finetuned, MISSES SLO",
        "Batch Size 16 Finetuned, MISSES SLO",
        "Optimized Target",
    ]


def test_without_a_speed_nothing_is_compared(priced: Callable[[str], Priced]):
    spec, _ = priced("h100-prod")
    assert break_even(inputs_of(spec), book()).rows == ()


def test_preemptible_nodes_have_rows_where_the_book_prices_them(
    priced: Callable[[str], Priced],
):
    """An H100 node is 8 GPUs at 4.50, or at 2.15 preemptible, which the list also has."""
    speed = AssumedSpeedSpec(scenario="s", output_tokens_per_s=Decimal(20_000), source="x")
    found, _ = compared(
        priced, book(b=price("1", "1")), stack="h100-prod", speeds=(speed,), serving_nodes=1
    )
    by_billing = {row.billing: row for row in found.rows if row.view is View.SERVING}
    assert set(by_billing) == {Billing.ON_DEMAND, Billing.PREEMPTIBLE}
    assert by_billing[Billing.ON_DEMAND].usd_per_day_low == Decimal("4.50") * 8 * 24
    assert by_billing[Billing.PREEMPTIBLE].usd_per_day_low == Decimal("2.15") * 8 * 24


def test_another_billing_changes_the_cluster_as_a_bill_of_its_own_does(
    priced: Callable[[str], Priced],
):
    spec, bill = priced("h100-prod")
    prices = PriceBook.load(spec.prices)
    hourly = unit_costs(spec, bill, []).hourly
    workers = tuple(replace(w, billing=Billing.PREEMPTIBLE) for w in spec.nodes.workers)
    other = replace(spec, nodes=replace(spec.nodes, workers=workers))
    expected = unit_costs(other, estimate(other, prices), []).hourly
    found = hourly_by_billing(bill, hourly)[Billing.PREEMPTIBLE]
    for name in ("cluster_low_usd", "cluster_high_usd", "serving_usd"):
        assert abs(getattr(found, name) - getattr(expected, name)) < Decimal("1e-20")


def test_a_paused_stack_is_compared_with_the_nodes_that_it_has(priced: Callable[[str], Priced]):
    """Its chats pay for the serving node alone, whatever the nodesets have when they run."""
    spec, _ = priced("h100-prod")
    spec = replace(spec, nodes=replace(spec.nodes, paused=True))
    inputs = inputs_of(spec)
    hourly = inputs.hourly
    found = hourly_by_billing(inputs.estimate, hourly)[Billing.PREEMPTIBLE]
    saved = (Decimal("4.50") - Decimal("2.15")) * 8 * spec.chat.serving_nodes
    assert found.cluster_low_usd == hourly.cluster_low_usd - saved
    assert found.cluster_high_usd == hourly.cluster_high_usd - saved


def test_a_book_without_preemptible_prices_adds_no_row(priced: Callable[[str], Priced]):
    found, _ = compared(priced, book(b=price("1", "1")))
    assert {row.billing for row in found.rows} == {Billing.ON_DEMAND}


def test_without_a_serving_nodeset_only_the_cluster_is_compared(
    priced: Callable[[str], Priced],
):
    found, units = compared(priced, book(b=price("1", "1")), serving_nodeset=None)
    assert {row.view for row in found.rows} == {View.CLUSTER}
    assert "unknown" in break_even_tables(found, units)[0].rows[1]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_model_that_a_shipped_stack_names_has_a_price(
    priced: Callable[[str], Priced], name: str
):
    spec, _ = priced(name)
    assert spec.chat.api_models
    assert [
        model
        for model in spec.chat.api_models
        if not isinstance(ApiPriceBook.load().find(model), ApiPrice)
    ] == []


def test_the_bill_has_a_part_with_the_tables_and_draws_only_when_asked(
    priced: Callable[[str], Priced],
):
    spec, _ = priced("l40s-dev")
    inputs = inputs_of(spec)
    (part,) = break_even_part(inputs)
    assert len(part.tables) == 2
    assert [figure[:4] for figure in part.draw_figures()] == ["<svg"] * 3
    silent = replace(spec, chat=replace(spec.chat, api_models=()))
    (part,) = break_even_part(inputs_of(silent))
    assert (part.tables, part.notes) == ((), ())


SPEED = Speed(
    scenario="s", output_tokens_per_s=Decimal(60), basis=Basis.ASSUMED, source="x", date=None
)
HOURLY = HourlyCost(cluster_low_usd=Decimal(1), cluster_high_usd=Decimal(1), serving_usd=None)
money = st.decimals("0.0001", "100000", places=4)


@law(200)
@given(usd_per_day=money, more=money, api_usd=money, room=money, nodes=st.integers(1, 9))
def test_at_the_break_even_both_ways_cost_the_same(
    usd_per_day: Decimal, more: Decimal, api_usd: Decimal, room: Decimal, nodes: int
):
    # Of as many output tokens as a day has seconds, a node has room for its tokens a second.
    chat = replace(CHAT, output_tokens=86_400, serving_nodes=nodes)
    row = BreakEven(
        chat=ChatCost(chat, replace(SPEED, output_tokens_per_s=room / nodes), HOURLY),
        view=View.CLUSTER,
        billing=Billing.ON_DEMAND,
        api=ApiCost(model="m", usd=api_usd, price=price("1", "1")),
        usd_per_day_low=usd_per_day,
        usd_per_day_high=usd_per_day + more,
    )
    chats, high = row.chats_per_day_low, row.chats_per_day_high
    assert chats is not None
    assert high is not None
    assert abs(row.self_hosted_usd(chats) - api_usd) <= api_usd * Decimal("1e-25")
    assert chats <= high
    # It is reached exactly when a full node beats the API.
    if row.is_reached:
        assert row.self_hosted_usd(room) <= api_usd * (1 + Decimal("1e-25"))
        assert row.self_hosted_usd(chats * 2) < api_usd
    else:
        assert row.self_hosted_usd(room) >= api_usd * (1 - Decimal("1e-25"))
    needed = row.serving_nodes_needed
    assert needed is not None
    assert needed * room / nodes >= chats * (1 - Decimal("1e-20"))


def test_a_model_that_nothing_can_be_compared_with_is_a_warning_with_its_key(
    priced: Callable[[str], Priced],
):
    spec = priced("h100-prod")[0]
    chat = replace(spec.chat, api_models=("openai/gpt-4o-mini", "openai/gpt-4o-minn"))
    found = bill(replace(spec, chat=chat), PriceBook.load(spec.prices)).warnings
    (problem,) = [each for each in found if "api_models" in each.path]
    assert problem.path == "h100-prod.chat.api_models[1]"
    assert "the nearest name is 'openai/gpt-4o-mini'; correct it" in problem.message


@pytest.mark.parametrize(
    ("context", "output", "level"),
    [
        (131_072, 1, Level.WARNING),
        (131_073, 1, Level.ERROR),
        (900_000, 2_000, Level.ERROR),
        (131_000, 72, None),
    ],
)
def test_a_chat_longer_than_its_models_context_is_not_priced_without_a_word(
    priced: Callable[[str], Priced], context: int, output: int, level: Level | None
) -> None:
    """Only `advise` and `size` asked the model; the stack's own key had no such question."""
    spec, _ = priced("h100-prod")
    for model in ("Qwen2-7B-Instruct", "qwen/qwen2-7b-instruct", "a-model-of-ours"):
        chat = replace(spec.chat, model=model, context_tokens=context, output_tokens=output)
        problems = bill(replace(spec, chat=chat), PriceBook.load(spec.prices)).problems
        found = [each for each in problems if each.path.endswith("chat.context_tokens")]
        assert [each.level for each in found] == (
            [level] if level is not None and "7" in model else []
        )
        assert all("Qwen2-7B was made for 131,072" in each.message for each in found)
