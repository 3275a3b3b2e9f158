"""The report in a real browser: it shows what it should, runs nothing and asks for nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, sync_playwright

from infra.reports.acceptance import certificate as certificate_page
from infra.reports.acceptance.certificate import content
from infra.reports.acceptance.run import parse
from infra.reports.page import page
from infra.reports.page.training import collect
from stacks.load import load_stack
from tests.unit.accept import acceptance
from tests.unit.cost.loads import load_json
from tests.unit.report.loops import write_loop
from tests.unit.report.reports import HOSTILE, write_runs

pytestmark = pytest.mark.browser

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,4000",
    "--virtual-time-budget=2000",
    # The browser's own calls home must not leave this machine either.
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def chromium(folder: Path, *arguments: str) -> str:
    """Standard output of one headless run with a profile of its own."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the Debian package chromium (`make setup`)")
    done = subprocess.run(
        [program, *_FLAGS, f"--user-data-dir={folder / 'profile'}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.fixture
def report(tmp_path: Path, public_key_file: Path) -> Path:
    write_runs(tmp_path, hostile=HOSTILE)
    path = tmp_path / "report.html"
    path.write_text(page.render(collect(load_stack("local"), tmp_path)))
    return path


@pytest.mark.feature("S004-31")
def test_every_section_and_figure_is_there_and_no_foreign_text_came_alive(
    report: Path, tmp_path: Path
) -> None:
    dom = chromium(tmp_path, "--dump-dom", report.as_uri())
    for section in ("loop", "charts", "cost", "training", "architecture", "runs", "real"):
        assert f'<details id="{section}">' in dom
    # The architecture, the loss curve, and a chat against throughput, utilisation and chats a day.
    assert dom.count("<svg") == 5
    assert "API openai/gpt-4o-mini" in dom
    assert "Loss from 2.000 to 0.900 over 12 steps" in dom
    assert "measured on 2026-11-21" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert HOSTILE in unescape(dom)


def test_the_page_makes_the_browser_ask_nobody(report: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    chromium(tmp_path, f"--log-net-log={log}", "--dump-dom", report.as_uri())
    asked = set(re.findall(r'"url":"https?://([^/"]+)', log.read_text(errors="replace")))
    # What the browser asks of its maker is not the page's doing.
    assert not {host for host in asked if not host.endswith((".google.com", ".googleapis.com"))}


SIZES = ((1280, 800), (400, 800))
SCHEMES = ("light", "dark")
# Contrast by WCAG 2.2, "relative luminance" (https://www.w3.org/TR/WCAG22/#dfn-relative-luminance).
_LOOK = """() => {
  const light = css => {
    const [r, g, b] = css.match(/[\\d.]+/g).map(Number).map(each => each / 255)
      .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = node => {
    const css = getComputedStyle(node).backgroundColor;
    return css === "rgba(0, 0, 0, 0)" && node.parentElement ? paper(node.parentElement) : css;
  };
  const contrast = node => {
    const [a, b] = [light(getComputedStyle(node).color), light(paper(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const openDetails = document.querySelectorAll("details[open]").length;
  const folded = document.querySelectorAll("details").length;
  const bottoms = [...document.querySelectorAll("#answers dd, h1, .certifies")].map(
    each => each.getBoundingClientRect().bottom);
  document.querySelectorAll("details").forEach(each => { each.open = true; });
  const texts = [...document.querySelectorAll("svg text")].filter(
    each => each.getBoundingClientRect().width > 0);
  const scale = each => {
    const svg = each.ownerSVGElement;
    return svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  };
  const words = document.querySelectorAll("h1, h2, p, dt, dd, dd strong, dd span, th, td, li, summary");
  const headings = [...document.querySelectorAll("h2")].map(each => each.textContent);
  return {
    headings,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    openDetails, folded, bottoms,
    chartPx: Math.min(...texts.map(
      each => parseFloat(getComputedStyle(each).fontSize) * scale(each))),
    contrast: Math.min(...[...words].map(contrast)),
    cut: texts.filter(each => each.closest("figure") && (
      each.getBoundingClientRect().right > each.ownerSVGElement.getBoundingClientRect().right + 1
    )).map(each => each.textContent),
  };
}"""  # noqa: E501


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the Debian package chromium (`make setup`)")
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
        opened = playwright.chromium.launch(executable_path=program, args=flags)
        yield opened
        opened.close()


def looked_at(
    browser: Browser, path: Path, size: tuple[int, int], scheme: Literal["light", "dark"]
) -> dict[str, Any]:
    """What a reader sees of the page; the screenshot of the first screen lies beside it."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    with context:
        page = context.new_page()
        page.goto(path.as_uri())
        shot = path.with_name(f"{path.stem}-{width}-{scheme}.png")
        page.screenshot(path=shot)
        assert shot.stat().st_size > 10_000
        return {"text": page.inner_text("body"), **page.evaluate(_LOOK)}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["measured", "nothing measured", "certificate"])
def test_the_first_screen_answers_and_everything_is_readable(
    kind: str,
    size: tuple[int, int],
    scheme: Literal["light", "dark"],
    browser: Browser,
    tmp_path: Path,
    public_key_file: Path,
) -> None:
    if kind == "certificate":
        path, answers = tmp_path / "certificate.html", ["FAIL", "It certifies"]
        path.write_text(certificate_page.render(certified()), encoding="utf-8")
    else:
        if kind == "measured":
            # The longest sentence of a chat's cost: a load of other lengths than the chat's.
            write_loop(tmp_path, load=load_json(prompt_tokens=65.03))
        path = tmp_path / "report.html"
        path.write_text(page.render(collect(load_stack("local"), tmp_path)))
        answers = [
            "Yes, better." if kind == "measured" else "NOT MEASURED: no evaluation",
            "Measured: $" if kind == "measured" else "NOT MEASURED: no speed",
            "$7,332 to $7,640 a month.",
        ]
    seen = looked_at(browser, path, size, scheme)
    for answer in answers:
        assert answer in seen["text"]
    assert kind == "certificate" or seen["headings"][0] == "Quality"
    assert max(seen["bottoms"]) <= size[1], "below the first screen"
    assert (seen["openDetails"], seen["folded"] >= 3) == (0, True)
    assert seen["overflow"] == 0
    assert seen["chartPx"] >= 9
    assert seen["contrast"] >= 4.5
    assert not seen["cut"]


def certified() -> dict[str, Any]:
    """The certificate of two nodes, one slow GPU; cluster and file are a long word each."""
    points = (acceptance.point(8, 41467.8), acceptance.point(16, 8572.6, 2))
    made = acceptance.report(points=points, extra=[acceptance.slow_gpu()])
    result = parse(acceptance.values(made), "made")
    made_of = content(result, stack="h100-prod", prices={}, price_note="Prices: a book.")
    measured = {"attested": False, "cluster": f"SHA256:{'v' * 43}", "job_id": 7}
    return {**made_of, "evidence": [measured, {"attested": True, "sha256": "f" * 64}]}
