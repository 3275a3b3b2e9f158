"""Every chat that a stack may declare can be printed in every format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.bill.bill import Bill, SharedBill, bill, render_chats
from cost.prices.book import PriceBook
from cost.report.layout import WIDTH, Format
from stacks.spec.cost import AssumedSpeedSpec, ChatSpec
from tests.nightly import law
from tests.unit.cost.conftest import Priced

rates = st.decimals("1", "20000", places=1)


@st.composite
def chats(draw: st.DrawFn) -> ChatSpec:
    turns = draw(st.integers(1, 20))
    context = draw(st.integers(1, 100_000))
    return ChatSpec(
        model="Qwen3-14B",
        context_tokens=context,
        output_tokens=draw(st.integers(turns, turns * min(context, 5_000))),
        turns=turns,
        cached_share=draw(st.decimals("0", "1", places=2)),
        chats_per_day=draw(st.none() | st.integers(1, 100_000)),
        max_answer_s=draw(st.none() | rates),
        api_models=("openai/gpt-4o-mini", "nowhere/nothing"),
        serving_nodeset=draw(st.sampled_from(["worker", None])),
        speeds=tuple(
            AssumedSpeedSpec(
                scenario=f"<b>{index}</b> & =1+1",
                output_tokens_per_s=draw(rates),
                source="x",
                batch_size=draw(st.integers(1, 512)),
                prefill_tokens_per_s=draw(st.none() | rates),
            )
            for index in range(draw(st.integers(1, 3)))
        ),
    )


def bill_of(priced: Callable[[str], Priced], chat: ChatSpec) -> Bill:
    spec = replace(priced("l40s-dev")[0], chat=chat)
    return bill(spec, PriceBook.load(spec.prices))


class Tags(HTMLParser):
    """Every tag of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)


@law(10, shares_fixtures=True)
@given(chat=chats())
def test_every_chat_can_be_printed_in_every_format(priced: Callable[[str], Priced], chat: ChatSpec):
    found = bill_of(priced, chat)
    texts = {kind: render_chats(found, kind) for kind in Format}
    assert all(text.isascii() and text.endswith("\n") for text in texts.values())
    assert all(len(line) <= WIDTH for line in texts[Format.TABLE].splitlines())
    plain = json.loads(texts[Format.JSON])
    assert [row["scenario"] for row in plain["chats"]] == [row.scenario for row in chat.speeds]
    assert "no API price of 'nowhere/nothing'" in " ".join(plain["notes"])
    rows = list(csv.DictReader(io.StringIO(texts[Format.CSV])))
    assert [Decimal(row["cluster_low_usd"]) for row in rows] == [
        Decimal(row["cluster_low_usd"]) for row in plain["chats"]
    ]
    tags = Tags()
    tags.feed(texts[Format.HTML])
    assert "b" not in tags.tags
    assert "svg" in tags.tags


def test_a_row_that_misses_its_promise_is_red_in_the_page(priced: Callable[[str], Priced]):
    chat = priced("l40s-dev")[0].chat
    html = render_chats(bill_of(priced, replace(chat, max_answer_s=Decimal(60))), Format.HTML)
    assert html.count("<tr class=bad>") == 2
    assert "tr.bad" in html


@pytest.mark.feature("S000-117", "S000-118", "S000-119")
@pytest.mark.parametrize("format", list(Format))
def test_another_bill_is_shared_beside_the_stack_s_own(
    priced: Callable[[str], Priced], format: Format
):
    found = bill_of(priced, priced("l40s-dev")[0].chat)
    shared = SharedBill(usd=Decimal(19_000), days=Decimal(30))
    text = render_chats(found, format, shared)
    if format is not Format.CSV:
        assert "3.858025" in text if format is Format.JSON else "$3.86" in text
    if format is Format.TABLE:
        row = "Single Batch Finetuned 164 $3.86"
        assert row in (" ".join(line.split()) for line in text.splitlines())
    assert "3.62" in text or "3.63" in text
