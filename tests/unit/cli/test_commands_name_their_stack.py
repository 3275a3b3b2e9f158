"""A command that a message tells a person to type acts on the stack that the message is about.

Without --stack it acts on `local`, where job ids start at 1 as on every cluster.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from infra.cli.main import VERBS, app

ROOT = Path(__file__).parents[3]
ROOMS = ("stacks", "cost", "infra", "workloads")
# The demo's own page is of the stack `local`, which is what a command without --stack acts on.
DEMO = ROOT / "infra" / "setup" / "demo"
PLACES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if not path.is_relative_to(DEMO)
]
OF_NO_STACK = re.compile(
    # A price book is every stack's, a certificate or result is its own file's, and a model that is
    # named is sized on every preset.
    r"soperator (?:cost prices|cost size|runs overhead|cluster accept --verify|cost -->)"
)
NAMED = re.compile(r"(?<!\S)(?:-s|--stack)[ =]\S")


@cache
def command() -> re.Pattern[str]:
    """A command that takes --stack, up to the end of its words."""
    root: Any = typer.main.get_command(app)
    found: list[tuple[str, bool]] = []
    for words in VERBS:
        verb = root
        for word in words.split():
            verb = verb.get_command(None, word)
        takes = any("--stack" in parameter.opts for parameter in verb.params)
        # Longest first: a verb may take none though its group does.
        found.append((words, takes))
    names = sorted(found, key=lambda each: -len(each[0]))
    others = "|".join(words for words, takes in names if not takes)
    mine = "|".join(words for words, takes in names if takes)
    return re.compile(rf"soperator (?!(?:{others})\b)(?:{mine})\b(?:(?!soperator )[^;`\n])*")


def messages(node: ast.AST) -> Iterator[str]:
    """Every text but docstrings and helps, which name a command of any stack; `{}` is a value."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            is_help = isinstance(child, ast.keyword) and child.arg == "help"
            is_help |= isinstance(child, ast.Call) and ast.unparse(child.func) in ("opt", "arg")
            is_doc = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not is_help and not is_doc:
                yield from messages(child)


def nameless(told: Iterable[str]) -> list[str]:
    """Commands in the messages whose stack is not named."""
    return [
        found[0]
        for message in told
        for found in command().finditer(message)
        if not NAMED.search(found[0]) and not OF_NO_STACK.match(found[0])
    ]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_in_a_message_names_its_stack(path: Path) -> None:
    assert nameless(messages(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("table", ["waits.tsv", "ends.tsv"])
def test_a_command_in_a_table_of_messages_names_its_stack(table: str) -> None:
    text = (ROOT / "infra/jobs" / table).read_text(encoding="utf-8")
    assert command().search(text)
    assert nameless(re.split(r"[\t\n]", text)) == []


def test_the_scan_sees_a_command_without_its_stack() -> None:
    code = (
        '"""soperator pull ID"""\nnote(f"{a}: soperator cancel {b}; soperator logs {b} -s {c}")\n'
    )
    assert nameless(messages(ast.parse(code))) == ["soperator cancel {}"]


def test_the_scan_takes_another_option_for_no_stack() -> None:
    assert nameless(["soperator submit JOB --set a=b"]) == ["soperator submit JOB --set a=b"]
    assert nameless(["soperator cost size MODEL"]) == []
