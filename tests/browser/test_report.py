"""The report in a real browser: it shows what it should, runs nothing and asks for nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from infra.report import page
from infra.report.collect import collect
from stacks.load import load_stack
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
    return page.write(collect(load_stack("local"), tmp_path), tmp_path / "report.html")


def test_every_section_and_figure_is_there_and_no_foreign_text_came_alive(
    report: Path, tmp_path: Path
) -> None:
    dom = chromium(tmp_path, "--dump-dom", report.as_uri())
    sections = "architecture cost training evaluation chat unit-costs runs real"
    for section in sections.split():
        assert f'<section id="{section}"' in dom
    # The architecture, the loss curve, and a chat against throughput, utilisation and chats a day.
    assert dom.count("<svg") == 5
    assert "API openai/gpt-4o-mini" in dom
    assert 'class="curve"' in dom
    assert "measured 2026-11-21" in dom
    assert "<script" not in dom
    assert "<img" not in dom
    assert HOSTILE in unescape(dom)


def test_the_page_makes_the_browser_ask_nobody(report: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    chromium(tmp_path, f"--log-net-log={log}", "--dump-dom", report.as_uri())
    asked = set(re.findall(r'"url":"https?://([^/"]+)', log.read_text(errors="replace")))
    # What the browser asks of its maker is not the page's doing.
    assert not {host for host in asked if not host.endswith((".google.com", ".googleapis.com"))}
