"""What a chat costs follows from the time that it keeps a serving node busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.bill.bill import SharedBill
from cost.chat.speeds import (
    Basis,
    ChatCost,
    HourlyCost,
    Speed,
)
from cost.chat.unit_costs import NotKnown, UnitCosts, chat_notes, chat_table
from cost.report.layout import WIDTH, Format, Report, render_report
from stacks.spec.cost import ChatSpec
from tests.nightly import law
from tests.unit.cost.conftest import Priced, record, unit_costs

SETTINGS = law(100)
EPSILON = Decimal("1e-20")
CHAT = ChatSpec(model="m", context_tokens=8000, output_tokens=2000, serving_nodeset="worker")
HOURLY = HourlyCost(
    cluster_low_usd=Decimal(24), cluster_high_usd=Decimal(30), serving_usd=Decimal(4)
)


def speed(output: str, prefill: str | None = None, batch_size: int = 1) -> Speed:
    """An assumed speed."""
    return Speed(
        scenario="s",
        output_tokens_per_s=Decimal(output),
        basis=Basis.ASSUMED,
        source="x",
        date=None,
        batch_size=batch_size,
        prefill_tokens_per_s=None if prefill is None else Decimal(prefill),
        prefill_basis=None if prefill is None else Basis.ASSUMED,
    )


def cost_of(output: str, prefill: str | None = None, batch_size: int = 1, **chat: Any) -> ChatCost:
    """The cost of the test's chat after the changes."""
    return ChatCost(replace(CHAT, **chat), speed(output, prefill, batch_size), HOURLY)


def rounded(value: Decimal | None, like: str) -> str:
    assert value is not None
    return str(value.quantize(Decimal(like), ROUND_HALF_UP))


def seed_rows(priced: Callable[[str], Priced]) -> tuple[ChatCost, ...]:
    chats = unit_costs(*priced("l40s-dev"), []).chats
    assert not isinstance(chats, NotKnown)
    return chats


@pytest.mark.feature("S000-117", "S000-118", "S000-119")
def test_the_seed_s_three_rows_come_out_on_its_own_basis(priced: Callable[[str], Priced]):
    """$19,000 over the chats of 30 days."""
    assert [
        (
            int(row.tokens_per_day),
            int(row.chats_per_day),
            rounded(SharedBill(usd=Decimal(19_000), days=Decimal(30)).usd_per_chat(row), "0.01"),
        )
        for row in seed_rows(priced)
    ] == [(328_320, 164, "3.86"), (5_184_000, 2_592, "0.24"), (17_280_000, 8_640, "0.07")]


def test_the_exact_rows_are_those_of_a_month_of_730_hours(priced: Callable[[str], Priced]):
    """18,116.0796 and 19,039.5996 a month; 4.5688 an hour for the one node that serves."""
    assert [
        (
            rounded(row.cluster_low_usd, "0.0001"),
            rounded(row.cluster_high_usd, "0.0001"),
            rounded(row.serving_usd, "0.0001"),
        )
        for row in seed_rows(priced)
    ] == [
        ("3.6282", "3.8131", "0.6680"),
        ("0.2298", "0.2415", "0.0423"),
        ("0.0689", "0.0724", "0.0127"),
    ]


def test_the_seed_s_rows_wait_as_long_as_their_streams_are_slow(priced: Callable[[str], Priced]):
    """2,000 tokens at 3.8 a second; 16 streams share 60, which is 3.75 each."""
    rows = seed_rows(priced)
    assert [rounded(row.answer_s, "1") for row in rows] == ["526", "533", "10"]
    assert rows[1].speed.stream_tokens_per_s == Decimal("3.75")


def test_reading_the_prompt_takes_node_time_where_its_speed_is_known():
    """2,000 tokens at 100/s and 8,000 at 1,000/s: 20 + 8 seconds, 24 x 28 / 3600 dollars."""
    row = cost_of("100", "1000")
    assert row.counts_prefill
    assert rounded(row.answer_s, "0.001") == "28.000"
    assert rounded(row.cluster_low_usd, "0.000001") == "0.186667"
    assert rounded(row.chats_per_day, "0.01") == "3085.71"
    assert cost_of("100").cluster_low_usd == Decimal(24) * 2000 / 360000


def test_each_turn_reads_its_context_and_the_answers_share_the_output():
    """Five turns read 5 x 8,000 at 1,000/s: 40 + 20 seconds, 12 for each answer."""
    row = cost_of("100", "1000", turns=5)
    assert rounded(row.cluster_low_usd, "0.000001") == "0.400000"
    assert rounded(row.answer_s, "0.001") == "12.000"


def test_what_a_prefix_cache_answers_is_not_read():
    """Three quarters cached leave 2,000 to read: 20 + 2 seconds."""
    row = cost_of("100", "1000", cached_share=Decimal("0.75"))
    assert rounded(row.answer_s, "0.001") == "22.000"
    assert cost_of("100", "1000", cached_share=Decimal(1)).cluster_low_usd == Decimal(24) / 180


def test_a_full_batch_makes_everyone_in_it_wait():
    """Ten conversations share 100 tokens/s and the reading of ten prompts."""
    alone, batched = cost_of("100", "1000"), cost_of("100", "1000", batch_size=10)
    assert batched.answer_s == 10 * alone.answer_s
    assert batched.cluster_low_usd == alone.cluster_low_usd


def test_idle_time_is_charged_to_the_chats_that_there_are():
    """Room for 4,320 a day, 432 asked for: 576 dollars a day by 432."""
    row = cost_of("100", chats_per_day=432)
    assert (row.utilisation, row.idle_share) == (Decimal("0.1"), Decimal("0.9"))
    assert row.cluster_low_usd == Decimal(576) / 432
    assert row.serving_usd == Decimal(96) / 432
    assert not row.is_over_capacity


def test_more_chats_than_there_is_room_for_say_how_many_nodes_they_need():
    """Room for 4,320 on a node: 10,000 need three, and the row stays at full load."""
    row = cost_of("100", chats_per_day=10_000)
    assert (row.serving_nodes_needed, row.is_over_capacity) == (3, True)
    assert row.utilisation > 2
    assert row.cluster_low_usd == cost_of("100").cluster_low_usd
    enough = cost_of("100", chats_per_day=10_000, serving_nodes=3)
    assert not enough.is_over_capacity
    assert enough.chats_per_day == 3 * 4320


def test_demand_that_fills_the_room_exactly_is_full_load():
    row = cost_of("100", chats_per_day=4320)
    assert (row.utilisation, row.is_over_capacity) == (Decimal(1), False)
    assert row.cluster_low_usd == cost_of("100").cluster_low_usd


@pytest.mark.parametrize(("limit", "kept"), [("20", True), ("19.99", False)])
def test_a_row_keeps_its_promise_up_to_the_last_second(limit: str, kept: bool):
    assert cost_of("100", max_answer_s=Decimal(limit)).meets_slo is kept


def test_without_a_promise_no_row_is_judged():
    assert cost_of("100").meets_slo is None


def with_chat(priced: Callable[[str], Priced], **chat: Any) -> UnitCosts:
    """Unit costs of l40s-dev after changes of its chat."""
    spec, bill = priced("l40s-dev")
    return unit_costs(replace(spec, chat=replace(spec.chat, **chat)), bill, [])


def test_a_row_that_misses_its_promise_says_so_in_text_and_is_red_in_html(
    priced: Callable[[str], Priced],
):
    units = with_chat(priced, max_answer_s=Decimal(60))
    assert "kept by Optimized Target; MISSES SLO: Single Batch" in " ".join(chat_notes(units))
    table = chat_table(units)
    assert table is not None
    document = Report(heading=None, tables=(table,), notes=tuple(chat_notes(units)))
    lines = render_report(document, Format.TABLE).splitlines()
    assert [line.split("  ")[0] for line in lines if line.endswith("MISSES SLO")] == [
        "Single Batch Finetuned",
        "Batch Size 16 Finetuned",
    ]
    assert all(len(line) <= WIDTH for line in lines)
    html = render_report(document, Format.HTML)
    assert html.count("<tr class=bad>") == 2
    assert "<tr><td>Optimized Target</td>" in html


def test_where_reading_is_counted_the_table_shows_how_fast(priced: Callable[[str], Priced]):
    """Tokens a day could not be had from tokens a second."""
    speeds = priced("l40s-dev")[0].chat.speeds
    one = (replace(speeds[0], prefill_tokens_per_s=Decimal(12_900)), *speeds[1:])
    table = chat_table(with_chat(priced, speeds=one, max_answer_s=Decimal(60)))
    assert table is not None
    column = table.headings.index("Reads/s")
    assert table.headings[column - 1] == "Tokens/s"
    assert [row[column] for row in table.rows] == ["12,900", "-", "-"]
    text = render_report(Report(heading=None, tables=(table,), notes=()), Format.TABLE)
    assert max(map(len, text.splitlines())) <= WIDTH
    without = chat_table(with_chat(priced))
    assert without is not None
    assert "Reads/s" not in without.headings


def test_the_notes_say_what_is_not_counted(priced: Callable[[str], Priced]):
    text = " ".join(chat_notes(with_chat(priced)))
    assert "Reading the prompt is not counted: no prefill speed is declared or measured." in text
    assert "assumed: published run (sar/nebius)" in text
    speeds = priced("l40s-dev")[0].chat.speeds
    one = (replace(speeds[0], prefill_tokens_per_s=Decimal(900)), *speeds[1:])
    text = " ".join(chat_notes(with_chat(priced, speeds=one)))
    assert "not counted for Batch Size 16 Finetuned, Optimized Target" in text
    assert "reads 900 tokens/s (assumed)" in text


def test_the_notes_say_the_load_and_what_it_needs(priced: Callable[[str], Priced]):
    text = " ".join(chat_notes(with_chat(priced, chats_per_day=500)))
    assert (
        "Single Batch Finetuned: 500 chats a day need 4 serving nodes of nodeset worker-serve, "
        "chat.serving_nodes is 1 (utilisation 304.6 %)" in text
    )
    assert "Batch Size 16 Finetuned: utilisation 19.3 %; the idle 80.7 % is charged" in text


def test_dates_of_measurements_are_printed_and_no_ages(priced: Callable[[str], Priced]):
    spec, bill = priced("local")
    text = " ".join(chat_notes(unit_costs(spec, bill, [record()])))
    assert "measured on 2026-11-21: job 12 of stack local on cpu" in text


tokens = st.integers(1, 100_000)
rates = st.decimals("0.01", "100000", places=2)
shares = st.decimals("0", "1", places=3)


@st.composite
def chats(draw: st.DrawFn) -> tuple[ChatSpec, Speed]:
    chat = replace(
        CHAT,
        context_tokens=draw(tokens),
        output_tokens=draw(tokens),
        turns=draw(st.integers(1, 50)),
        cached_share=draw(shares),
        chats_per_day=draw(st.none() | st.integers(1, 1_000_000)),
        serving_nodes=draw(st.integers(1, 8)),
    )
    prefill = draw(st.none() | rates)
    return chat, replace(
        speed(str(draw(rates)), batch_size=draw(st.integers(1, 64))), prefill_tokens_per_s=prefill
    )


def not_above(small: Decimal, large: Decimal) -> bool:
    """Whether small <= large but for the last digits of 28."""
    return small <= large * (1 + EPSILON)


@SETTINGS
@given(case=chats(), faster=st.decimals("1", "100", places=2))
def test_a_faster_node_never_makes_a_chat_dearer_or_slower(
    case: tuple[ChatSpec, Speed], faster: Decimal
):
    chat, slow = case
    fast = replace(slow, output_tokens_per_s=slow.output_tokens_per_s * faster)
    before, after = ChatCost(chat, slow, HOURLY), ChatCost(chat, fast, HOURLY)
    assert not_above(after.cluster_low_usd, before.cluster_low_usd)
    assert not_above(after.answer_s, before.answer_s)
    assert not_above(before.chats_per_day, after.chats_per_day)


@SETTINGS
@given(case=chats(), more=st.integers(1, 100_000), turns=st.integers(0, 20))
def test_more_tokens_never_make_a_chat_cheaper(case: tuple[ChatSpec, Speed], more: int, turns: int):
    chat, at = case
    longer = replace(
        chat,
        output_tokens=chat.output_tokens + more,
        context_tokens=chat.context_tokens + more,
        turns=chat.turns + turns,
    )
    before, after = ChatCost(chat, at, HOURLY), ChatCost(longer, at, HOURLY)
    assert not_above(before.cluster_low_usd, after.cluster_low_usd)


@SETTINGS
@given(case=chats(), less=st.decimals("0", "1", places=3))
def test_a_larger_cached_share_never_makes_a_chat_dearer(
    case: tuple[ChatSpec, Speed], less: Decimal
):
    chat, at = case
    colder = replace(chat, cached_share=chat.cached_share * less)
    assert not_above(
        ChatCost(chat, at, HOURLY).cluster_low_usd, ChatCost(colder, at, HOURLY).cluster_low_usd
    )


@SETTINGS
@given(case=chats())
def test_the_serving_view_is_never_above_the_cluster_s(case: tuple[ChatSpec, Speed]):
    row = ChatCost(*case, HOURLY)
    assert row.serving_usd is not None
    assert row.serving_usd <= row.cluster_low_usd <= row.cluster_high_usd


@SETTINGS
@given(case=chats())
def test_the_chats_of_a_day_pay_the_day_exactly(case: tuple[ChatSpec, Speed]):
    row = ChatCost(*case, HOURLY)
    asked = row.chats_per_day if row.demand_per_day is None else row.demand_per_day
    served = min(asked, row.chats_per_day)
    day = HOURLY.cluster_low_usd * 24
    assert abs(served * row.cluster_low_usd - day) <= day * EPSILON
    needed, room = row.serving_nodes_needed, row.chats_per_day_of_node
    if row.demand_per_day is not None:
        assert row.demand_per_day <= needed * room * (1 + EPSILON)
        assert needed == 1 or (needed - 1) * room < row.demand_per_day * (1 + EPSILON)


@SETTINGS
@given(case=chats())
def test_little_s_law_holds(case: tuple[ChatSpec, Speed]):
    """Conversations in flight are answers a second times the seconds of an answer."""
    row = ChatCost(*case, HOURLY)
    answers_per_s = row.chats_per_day_of_node * row.chat.turns / 86400
    in_flight = answers_per_s * row.answer_s
    assert abs(in_flight - row.speed.batch_size) <= row.speed.batch_size * EPSILON
    assert not_above(row.tokens_per_s, row.speed.output_tokens_per_s)
