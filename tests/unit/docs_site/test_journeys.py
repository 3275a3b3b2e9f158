"""The pages of the journeys say what a reader can type: run here, or parsed to the last option."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from infra.cli.main import app
from tests.unit.docs_site.journeys import ANY, FOLDER, ROOT, commands, shown, soperator_lines

UsageError = typer.BadParameter.__mro__[1]
"""What typer raises for words that a command does not take; it exports only this kind of it."""
PAGES = [
    ROOT / "docs" / "quick-start.md",
    ROOT / "docs" / "attach.md",
    *sorted(FOLDER.glob("[0-9]*.md")),
]


def is_test(node_id: str) -> bool:
    """Whether a pytest node id (path::[Class::]function, parameters ignored) names a test."""
    path, *names = node_id.split("[")[0].split("::")
    file = ROOT / path
    if not names or not file.is_file() or not names[-1].startswith("test_"):
        return False
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for name in names:
        found = next((node for node in body if getattr(node, "name", None) == name), None)
        if not isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        body = found.body
    return isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)


def name_of(page: Path) -> str:
    return page.stem


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """A folder from which the checkout looks as it does to a reader, and a state of its own."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("workloads", "tests", "stacks"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    for name in ("NEBIUS_IAM_TOKEN", "SOPERATOR_NEBIUS_ENDPOINT", "PULUMI_BACKEND_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


def run(words: tuple[str, ...]) -> tuple[int, str]:
    """Status and everything that was printed."""
    program, *arguments = words
    if program == "soperator":
        done = CliRunner().invoke(app, arguments)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.output
    assert program == "python", f"{program}: a page's console blocks run soperator and python only"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    return process.returncode, process.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_runs_ends_and_prints_as_the_page_says(page: Path, reader: Path) -> None:
    for command in commands(page.read_text(encoding="utf-8")):
        status, printed = run(command.words)
        line = " ".join(command.words)
        assert status == command.status, f"{line}: {printed}"
        assert shown(command.output, printed) == [], line
        assert printed or ANY not in command.output, f"{line} printed nothing"


def parse(words: list[str]) -> None:
    """Parses a command as it would be run, without running it; click says what is wrong."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="soperator")
    while hasattr(command, "get_command"):
        name, *words = words
        found = command.get_command(context, name)
        assert found is not None, f"soperator {name} does not exist"
        if name == "cost" and not (words and words[0] in found.list_commands(context)):
            found.make_context(name, words, parent=context)
            return
        command = found
    command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_soperator_line_of_a_page_is_a_command_with_these_options(
    page: Path, reader: Path
) -> None:
    (reader / "certificate.html").touch()
    (reader / "id_ed25519.pub").touch()
    for words in soperator_lines(page.read_text(encoding="utf-8")):
        parse(words)


@pytest.mark.parametrize(
    "words",
    [["submit"], ["submit", "a", "--stacks", "b"], ["cluster", "accept", "--profile", "slow"]],
)
def test_a_line_that_could_not_run_is_found(words: list[str], reader: Path) -> None:
    with pytest.raises(UsageError):
        parse(words)


@pytest.mark.parametrize("page", PAGES[2:], ids=name_of)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(tests/\S+::\w+)`", page.read_text(encoding="utf-8"))
    assert named, "a journey names what shows that it works"
    assert [each for each in named if not is_test(each)] == []


def test_the_twelve_journeys_are_in_the_index_and_in_the_navigation() -> None:
    index = (FOLDER / "index.md").read_text(encoding="utf-8")
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len(PAGES) == 14
    for page in PAGES[2:]:
        assert f"({page.name})" in index
        assert f"journeys/{page.name}" in text


def test_every_page_of_the_navigation_is_two_clicks_away() -> None:
    """A tab, then a page: no third level to search in."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    for section in nav:
        ((_, pages),) = section.items()
        for page in pages:
            assert isinstance(page, str) or all(isinstance(path, str) for path in page.values())


def test_a_line_that_was_not_printed_is_missed() -> None:
    assert shown(("a", ANY, "c"), "a\nb\nc\n") == []
    assert shown(("c", "a"), "a\nb\nc\n") == ["a"]


@pytest.mark.feature("S003-87", "S003-89", "S003-90")
@pytest.mark.parametrize("page", ["fault-tolerance", "training", "troubleshooting"])
def test_the_guides_that_the_seeds_had_are_in_the_navigation(page: str) -> None:
    assert f"{page}.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert len((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines()) > 30
