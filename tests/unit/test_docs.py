"""What the documents say of the tree is true, and no committed file names one machine.

The invariants are those that rot quietly: a page moved, a command renamed, a host's address
committed.
"""

from __future__ import annotations

import json
import re
import subprocess
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
import typer.main

from cost.prices.book import layered
from cost.resources.estimate import estimate
from cost.resources.lines import Scope
from infra.cli.main import app
from stacks.load import load_stack
from tests import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
BILL = re.compile(r"^\| `([a-z0-9-]+)` \|.*\| ([\d,.]+) to ([\d,.]+) \|$", re.MULTILINE)
COMMAND = re.compile(r"(?:^|[(;&|] *)soperator((?: +[a-z][a-z-]+){1,2})\b", re.MULTILINE)
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
MACHINE_PATH = re.compile(r"(?<![\w./{}$-])/(?:work/|(?:root|home/\w+)/\.(?!ssh))")
"""Work folders and dot folders of a home; `/root/note` inside a jail is every cluster's."""
ADDRESS = re.compile(r"https?://|^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links)\b", re.MULTILINE)


def committed(*patterns: str) -> list[Path]:
    """Absolute paths of the files under version control that match and are still there."""
    out = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / name for name in out.split("\0") if name and (ROOT / name).is_file()]


def pages() -> list[Path]:
    """Every Markdown page of the tree."""
    return committed("*.md")


def code_of(text: str) -> str:
    """The code blocks and code spans of a page, a line each."""
    return "\n".join(block or span for block, span in CODE.findall(text))


def tree_of(text: str) -> list[str]:
    """The paths that the README's file tree names: the first word of each line of its block."""
    block = text.split("## File tree")[1].split("```")[1]
    return [line.split()[0] for line in block.splitlines() if line.strip()]


def unknown_commands(text: str) -> list[str]:
    """`soperator` commands in the code of a page whose verb does not exist."""
    unknown: list[str] = []
    for words in COMMAND.findall(code_of(text)):
        command: Any = typer.main.get_command(app)
        for word in words.split():
            if hasattr(command, "get_command"):
                command = command.get_command(typer.Context(command), word)
        if command is None:
            unknown.append(f"soperator{words}")
    return unknown


def name_of(path: Path) -> str:
    """The path in the tree, as a test id."""
    return str(path.relative_to(ROOT))


@pytest.mark.feature("S000-63")
@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.feature("S000-63", "S002-66")
@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_soperator_command_in_a_page_exists(page: Path) -> None:
    assert unknown_commands(page.read_text(encoding="utf-8")) == []


@pytest.mark.feature("S000-63")
def test_every_kind_of_job_has_its_page_in_the_contents_of_the_site(public_key_file: Path) -> None:
    pages = {
        "workloads.accept": "acceptance.md",
        "workloads.data": "data.md",
        "workloads.evaluate": "evaluation.md",
        "workloads.load": "load-test.md",
        "workloads.serve": "serving.md",
        "workloads.train": "training.md",
    }
    declared = {job.module for name in SHIPPED for job in load_stack(name).jobs}
    assert {".".join(module.split(".")[:2]) for module in declared} == pages.keys()
    contents = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    for module, page in pages.items():
        assert re.search(rf": {page}$", contents, re.MULTILINE), page
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert f"-m {module} " in text, page


def test_a_command_that_does_not_exist_is_found() -> None:
    text = "run `soperator levitate`, then `soperator local levitate`, then `soperator doctor`"
    assert unknown_commands(text) == ["soperator levitate", "soperator local levitate"]


def test_every_path_of_the_file_tree_exists() -> None:
    paths = tree_of((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_file_tree_names_every_top_level_folder() -> None:
    """A reader who lists the root finds each folder explained."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {path.split("/")[0] for path in tree_of(readme)}
    folders = {path.relative_to(ROOT).parts[0] for path in committed() if path.parent != ROOT}
    assert folders - named == set()


@pytest.mark.usefixtures("public_key_file")
def test_the_bills_in_the_readme_are_those_that_the_stacks_declare() -> None:
    """A changed price or preset changes the README in the same commit."""
    printed = BILL.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    declared = []
    for name in SHIPPED:
        spec = load_stack(name)
        listed = estimate(spec, layered(spec)).subtotal(Scope.MAIN)
        low, high = (
            f"{usd.quantize(Decimal('0.01'), ROUND_HALF_UP):,}"
            for usd in (listed.low_usd, listed.high_usd)
        )
        declared.append((spec.name, low, high))
    assert sorted(printed) == declared


def test_every_decision_is_in_the_index_with_its_title() -> None:
    """Numbers run from 0001 on without a gap, titles carry them, and docs/adr/README.md has all."""
    folder = ROOT / "docs" / "adr"
    decisions = sorted(folder.glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in decisions]
    assert numbers == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    index = (folder / "README.md").read_text(encoding="utf-8")
    for page in decisions:
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert title.startswith(f"# {page.name[:4]} "), page.name
        assert f"| [{page.name[:4]}]({page.name}) | {title[7:]} |" in index
    assert index.count("\n| [") == len(decisions)


def test_no_committed_file_names_a_path_of_one_machine() -> None:
    """Paths of the author's machine make a claim that nobody else can run."""
    found = [
        f"{name_of(path)}:{number}"
        for path in committed()
        for number, line in enumerate(path.read_bytes().decode(errors="ignore").splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_lock_files_carry_no_address() -> None:
    """The same lock file installs from any index, mirror or wheelhouse (decision 0007)."""
    locks = committed("*.lock")
    assert locks
    assert [name_of(path) for path in locks if ADDRESS.search(path.read_text())] == []


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_pages_are_ascii(page: Path) -> None:
    """A page reads the same in every terminal."""
    assert page.read_bytes().isascii()


def test_every_hop_of_the_architecture_is_there() -> None:
    """A flow that is followed by hand leads to a file and to what it names in that file."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    flows = text.split("## Five flows")[1].split("## What always holds")[0]
    file, hops = "", 0
    for word in re.findall(r"`([^`]+)`", flows):
        if "/" in word:
            file = (ROOT / word).read_text(encoding="utf-8")
        elif re.fullmatch(r"[A-Za-z_.]+", word) and word != "_SUCCESS":
            for name in word.split("."):
                assert re.search(rf"\b(?:def|class) {name}\b", file), word
                hops += 1
    assert hops > 20
    assert len(text.split()) < 800


def test_the_kills_of_the_page_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "tests" / "bench" / "kills.json").read_text(encoding="utf-8"))
    names = ("kills", "kills_in_training", "corrupt_checkpoints", "lost_more_than_the_running_step")
    rows = [" | ".join(str(each[f"num_{name}"]) for name in names) for each in measured.values()]
    text = (ROOT / "docs" / "preemptible.md").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^\| (?:two processes|real Slurm \S+) \| (.*) \|$", text) == rows
