"""A command that a message tells a person to type acts on the stack that the message is about.

Without --stack it acts on `local`, where job ids start at 1 as on every cluster.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PLACES = [
    *(
        path
        for room in ("cli", "jobs", "operate")
        for path in (ROOT / "infra" / room).rglob("*.py")
    ),
    ROOT / "infra/clients/pulumi.py",
    ROOT / "stacks/changes.py",
]
COMMAND = re.compile(
    r"soperator (?:cancel|logs|status|pull|submit|serve|ssh"
    r"|runs (?:list|load|leaderboard|reproduce|top)"
    r"|cluster (?:adopt|backup|destroy|drain|orphans|pause|restore|resume))\b"
    r"(?:(?!soperator )[^;`\n])*"
)
NAMED = re.compile(r"(?:-s|--stack) ?\S")


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
            is_doc = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not is_help and not is_doc:
                yield from messages(child)


def nameless(text: str) -> list[str]:
    """Commands in the code whose stack is not named."""
    return [
        found[0]
        for message in messages(ast.parse(text))
        for found in COMMAND.finditer(message)
        if not NAMED.search(found[0])
    ]


@pytest.mark.parametrize("path", PLACES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_in_a_message_names_its_stack(path: Path) -> None:
    assert nameless(path.read_text(encoding="utf-8")) == []


def test_the_scan_sees_a_command_without_its_stack() -> None:
    code = (
        '"""soperator pull ID"""\nnote(f"{a}: soperator cancel {b}; soperator logs {b} -s {c}")\n'
    )
    assert nameless(code) == ["soperator cancel {}"]
