"""The site builds with its links checked, asks no other host, and its made pages are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from infra.cli.main import VERBS
from stacks.load import stack_names
from tests.unit.docs_site import site as hooks
from tests.unit.docs_site.site import cli_page, price_page

ROOT = Path(__file__).resolve().parents[3]
_FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}
_LINKED = ("stylesheet", "icon", "preload", "preconnect")


class Fetches(HTMLParser):
    """Addresses that a browser fetches by itself when it shows the page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in _FETCHED:
            self.addresses.append(values.get(_FETCHED[tag]) or "")
        if tag == "link" and values.get("rel") in _LINKED:
            self.addresses.append(values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once as `make docs` does; a link that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_no_page_asks_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        parser = Fetches()
        parser.feed(page.read_text(encoding="utf-8"))
        assert parser.addresses
        foreign = [each for each in parser.addresses if re.match(r"(https?:)?//", each)]
        assert foreign == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\((['\"]?)(https?:)?//", style.read_text(encoding="utf-8"))


@pytest.mark.feature("S002-90")
def test_every_stack_has_its_drawing_and_every_verb_its_heading(site: Path) -> None:
    page = (site / "reference" / "drawings.html").read_text(encoding="utf-8")
    for stack in stack_names():
        assert f'src="{stack}.svg"' in page
        assert (site / "reference" / f"{stack}.svg").read_text().startswith("<svg ")
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for words in VERBS:
        assert f'id="soperator-{words.replace(" ", "-")}"' in commands
        assert f'href="#soperator-{words.replace(" ", "-")}"' in commands


def test_a_file_beside_the_pages_is_carried_along(site: Path) -> None:
    """Pages name price files and schemas; a link into the checkout leads nowhere in a site."""
    page = (site / "cost.html").read_text(encoding="utf-8")
    assert 'href="source/cost/bill/cost.schema.json"' in page
    assert (site / "source" / "cost" / "bill" / "cost.schema.json").is_file()


def test_the_commands_are_described_by_the_commands_themselves() -> None:
    text = cli_page()
    assert "| `--after ID` |" in text.split("## soperator submit\n")[1].split("\n## ")[0]
    assert "## soperator local up" in text
    assert "| `-s, --stack <str>` | Stack to use. [default: local] |" in text
    for verb in VERBS.values():
        assert f"| {verb.help} |" in text


def test_every_reading_of_the_price_books_has_its_source() -> None:
    rows = [line for line in price_page().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    for row in rows:
        sku, usd, *_, source = (cell.strip() for cell in row.strip("|").split(" | "))
        assert re.fullmatch(r"[\d.]+", usd), sku
        assert source, sku


@pytest.mark.parametrize(
    ("page", "link", "led"),
    [
        ("cost.md", "../cost/prices/api/hosted.yaml", "source/cost/prices/api/hosted.yaml"),
        ("adr/0012.md", "../features.tsv", "../source/docs/features.tsv"),
        ("sizing.md", "../workloads/train/strategy.py", "source/workloads/train/strategy.py.txt"),
        ("adr/0001.md", "../stack.md#jobs", "../stack.md#jobs"),
        ("cost.md", "https://example.org/x", "https://example.org/x"),
        ("cost.md", "#below", "#below"),
    ],
)
def test_a_link_out_of_the_pages_is_led_to_the_copy(page: str, link: str, led: str) -> None:
    assert hooks.inside(f"see [it]({link}).", page) == f"see [it]({led})."


def test_every_cell_about_another_system_has_a_source_or_says_that_none_was_found() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    table, sources = text.split("## Sources")
    rows = [line for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    given = set(re.findall(r"^\| ([A-Z]\d) \|", sources, re.MULTILINE))
    used: set[str] = set()
    assert len(rows) > 10
    for row in rows[1:]:
        subject, here, *others = (cell.strip() for cell in row.strip("|").split("|"))
        assert len(others) == 6, subject
        assert re.search(r"\]\([\w-]+\.md\)", here), f"{subject}: names no page of ours"
        for cell in others:
            marks = re.findall(r"\[([A-Z]\d)\]", cell)
            assert marks or cell == "not documented", f"{subject}: {cell}"
            used.update(marks)
    assert used == given, "a source that no cell uses, or a mark without a source"
