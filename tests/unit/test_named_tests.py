"""Every test that a page or the feature list names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"(tests/[\w/]+\.py)((?:::\w+)?)")
PAGES = ("docs/survival.md", "docs/threat-model.md", "docs/performance.md", "docs/day-two.md")


@cache
def _functions(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_tests_that_are_there(page: str) -> None:
    missing = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        path = None
        for name in re.findall(r"`([^`]+)`", line):
            if found := NAMED.match(name):
                path = ROOT / found[1]
            function = re.search(r"::(\w+)", name)
            if path is None or not (found or name.startswith("::")):
                continue
            if not path.is_file() or (function and function[1] not in _functions(path)):
                missing.append(name)
    assert missing == []
