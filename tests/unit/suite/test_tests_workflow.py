"""The workflow of every change is well-formed and pinned, and runs what people run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
# YAML 1.1 reads the key `on` as true; BaseLoader leaves every scalar as text.
WORKFLOW: dict[str, Any] = yaml.load(TEXT, yaml.BaseLoader)
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["fast"]["steps"]


def test_it_runs_on_every_pull_request_and_on_what_is_merged():
    assert WORKFLOW["on"] == {"push": {"branches": ["main"]}, "pull_request": ""}


def test_it_runs_the_commands_that_people_run():
    """A check that only the server knows is one that nobody can repeat."""
    commands = [step["run"] for step in STEPS if "run" in step]
    assert commands == ["make lint", "make test-fast"]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {command.split()[1] for command in commands} <= set(targets)


def test_its_python_is_the_one_of_the_lock_files():
    (version,) = [s["with"]["python-version"] for s in STEPS if "python" in s.get("uses", "")]
    assert f"--python-version {version}" in (ROOT / "Makefile").read_text()


def test_every_action_is_pinned_to_a_commit_and_no_secret_is_used():
    used = re.findall(r"uses: (\S+) ?(.*)", TEXT)
    assert len(used) == 2
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r"# v\d+\.\d+\.\d+", comment)
    assert "secrets." not in TEXT
    assert WORKFLOW["permissions"] == {"contents": "read"}
