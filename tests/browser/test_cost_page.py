"""The page of a bill in a real browser: light and dark, wide and narrow, asking for nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cost.bill.bill import bill, bill_page
from cost.prices.book import layered
from stacks.load import load_stack
from stacks.spec.cost import PolicySpec
from tests.browser.test_report import chromium

pytestmark = pytest.mark.browser

# What a script of the test finds out about the page; the page itself has none.
_PROBE = """
<script>
addEventListener("load", () => {
  const bad = document.querySelector("tr.bad td");
  const answer = {
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
    red: getComputedStyle(bad).color,
    paper: getComputedStyle(document.body).backgroundColor,
    charts: [...document.querySelectorAll("svg")].filter(each => each.getBoundingClientRect().height > 50).length,
    rows: document.querySelectorAll("tbody tr").length,
  };
  const note = document.createElement("p");
  note.id = "probe";
  note.textContent = Object.entries(answer).map(each => each.join("=")).join(";");
  document.body.append(note);
});
</script>
"""  # noqa: E501


@pytest.fixture
def page(tmp_path: Path, public_key_file: Path) -> Path:
    spec = load_stack("l40s-dev")
    chat = replace(spec.chat, max_answer_s=Decimal(60))
    spec = replace(spec, chat=chat, policy=PolicySpec(max_usd_per_month=Decimal(19000)))
    path = tmp_path / "bill.html"
    path.write_text(bill_page(bill(spec, layered(spec))), encoding="utf-8")
    return path


def probed(page: Path, folder: Path, *arguments: str) -> dict[str, str]:
    """What the probe says of the page, which is let run for the test alone."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', _PROBE, text)
    copy = folder / "probed.html"
    copy.write_text(text, encoding="utf-8")
    dom = chromium(folder, *arguments, "--dump-dom", copy.as_uri())
    found = re.search(r'id="probe">([^<]*)<', dom)
    assert found is not None
    return dict(pair.split("=", 1) for pair in found[1].split(";"))


def test_every_table_and_chart_is_drawn(page: Path, tmp_path: Path) -> None:
    found = probed(page, tmp_path)
    assert int(found["charts"]) >= 3
    assert int(found["rows"]) > 25


def test_a_narrow_screen_is_never_scrolled_sideways(page: Path, tmp_path: Path) -> None:
    """Wide tables scroll inside their own frame."""
    assert probed(page, tmp_path, "--window-size=500,2000")["wide"] == "false"
    assert probed(page, tmp_path, "--window-size=1400,2000")["wide"] == "false"


def test_dark_and_light_have_papers_and_reds_of_their_own(page: Path, tmp_path: Path) -> None:
    light = probed(page, tmp_path, "--blink-settings=preferredColorScheme=1")
    dark = probed(page, tmp_path, "--blink-settings=preferredColorScheme=0")
    assert light["paper"] == "rgb(247, 248, 250)"
    assert light["red"] == "rgb(163, 32, 26)"
    assert dark["paper"] == "rgb(14, 17, 22)"
    assert dark["red"] == "rgb(255, 180, 171)"


def test_the_page_makes_the_browser_ask_nobody(page: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    dom = chromium(tmp_path, f"--log-net-log={log}", "--dump-dom", page.as_uri())
    assert "<script" not in dom
    asked = set(re.findall(r'"url":"https?://([^/"]+)', log.read_text(errors="replace")))
    # What the browser asks of its maker is not the page's doing.
    assert not {host for host in asked if not host.endswith((".google.com", ".googleapis.com"))}
