"""The page of a bill is whole in itself: no script, no request, and text that stays text."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest

from cost.bill.bill import bill, bill_page
from cost.prices.book import layered
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import PolicySpec
from tests import SHIPPED

pytestmark = pytest.mark.usefixtures("public_key_file")
HOSTILE = "<script>alert(1)</script><img src=//evil.example/x>"
_VOID = {"meta", "link", "br", "col", "img", "circle", "path", "line", "rect"}


class Outline(HTMLParser):
    """Counts elements and refuses one that is not closed in its turn."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "action")]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            assert self.open.pop() == tag


def page_of(spec: StackSpec) -> str:
    return bill_page(bill(spec, layered(spec)))


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_page_is_well_formed_and_asks_for_nothing(name: str):
    text = page_of(load_stack(name))
    found = outline(text)
    assert text.startswith("<!doctype html>")
    assert "script" not in found.tags
    assert all(address.startswith(("data:", "#")) for address in found.addresses)
    assert not re.search(r"url\(\s*['\"]?(https?:)?//|@import", text)
    assert "default-src 'none'" in text


def test_missed_promises_and_broken_policies_are_red_rows():
    spec = load_stack("l40s-dev")
    chat = replace(spec.chat, max_answer_s=Decimal(60))
    plain = page_of(spec)
    strict = replace(spec, chat=chat, policy=PolicySpec(max_usd_per_month=Decimal(19000)))
    text = page_of(strict)
    assert plain.count("<tr class=bad>") == 0
    # 3.8 and 60 tokens a second take 526 and 533 s for 2,000 tokens; 200 take 10.
    assert text.count("<tr class=bad>") == 3
    assert re.search(r"<tr class=bad><td[^>]*>max_usd_per_month</td>", text)
    assert '<li class="error">error: l40s-dev.policy.max_usd_per_month' in text


def test_a_stack_with_chats_has_its_charts_and_one_without_has_none():
    assert outline(page_of(load_stack("l40s-dev"))).tags.count("svg") >= 3
    assert outline(page_of(load_stack("h100-prod"))).tags.count("svg") == 0


def test_text_of_a_stack_file_stays_text():
    spec = load_stack("l40s-dev")
    speeds = tuple(replace(speed, source=HOSTILE) for speed in spec.chat.speeds)
    first, *rest = speeds
    chat = replace(spec.chat, speeds=(replace(first, scenario=HOSTILE), *rest))
    text = page_of(replace(spec, chat=chat, bill_heading=HOSTILE))
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;" in text
