"""The workflow of pull requests is well-formed, pinned, without secrets, and its scripts run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github"
TEXT = (GITHUB / "workflows" / "cost.yml").read_text(encoding="utf-8")
# YAML 1.1 reads the key `on` as true; BaseLoader leaves every scalar as text.
WORKFLOW: dict[str, Any] = yaml.load(TEXT, yaml.BaseLoader)
STEPS: list[dict[str, Any]] = WORKFLOW["jobs"]["comment"]["steps"]


def test_it_runs_on_pull_requests_that_touch_stacks_or_prices_and_on_nothing_else():
    assert list(WORKFLOW["on"]) == ["pull_request"]
    assert WORKFLOW["on"]["pull_request"]["paths"] == ["stacks/**", "cost/**"]


def test_every_action_is_pinned_to_a_commit_with_its_version_beside_it():
    used = re.findall(r"uses: (\S+) ?(.*)", TEXT)
    assert len(used) == 2
    for action, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r"# v\d+\.\d+\.\d+", comment)


def test_it_needs_no_secret_and_may_write_comments_only():
    assert "secrets." not in TEXT
    assert WORKFLOW["permissions"] == {"contents": "read"}
    job = WORKFLOW["jobs"]["comment"]["permissions"]
    assert job == {"contents": "read", "pull-requests": "write"}


def test_no_text_of_a_pull_request_is_run_as_shell():
    """`${{ ... }}` in a `run` would paste foreign text into the script."""
    for step in STEPS:
        assert "${{" not in step.get("run", "")


def test_every_script_that_a_step_runs_is_there_and_may_be_run():
    scripts = re.findall(r"\.github/scripts/\S+\.sh", TEXT)
    assert len(set(scripts)) == 2
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK)
        subprocess.run(["sh", "-n", str(ROOT / script)], check=True)


def git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *author, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_the_comment_is_written_from_the_base_commit(tmp_path: Path):
    """The script checks the base out beside the head; the command gets that folder."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet")
    (repository / "which").write_text("base", encoding="utf-8")
    git(repository, "add", "which")
    git(repository, "commit", "--quiet", "-m", "base")
    base = git(repository, "rev-parse", "HEAD")
    (repository / "which").write_text("head", encoding="utf-8")
    git(repository, "commit", "--quiet", "-am", "head")
    command = tmp_path / "soperator"
    command.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys\n"
        "_, verb, _, base, _, format, _, file = sys.argv\n"
        "key = os.environ['SOPERATOR_SSH_PUBLIC_KEY_FILE']\n"
        "which = pathlib.Path(base, 'which').read_text()\n"
        "kind = pathlib.Path(key).read_text().split()[0]\n"
        "pathlib.Path(file).write_text(f'{verb} {format} {which} {kind}')\n",
        encoding="utf-8",
    )
    command.chmod(0o755)
    subprocess.run(
        [str(GITHUB / "scripts" / "write-cost-comment.sh"), base, str(tmp_path / "comment.md")],
        cwd=repository,
        env={**os.environ, "SOPERATOR_BIN": str(command)},
        check=True,
    )
    assert (tmp_path / "comment.md").read_text() == "cost markdown base ssh-ed25519"
    assert git(repository, "worktree", "list").count("\n") == 0


GH = """#!/bin/sh
printf '%s\\n' "$*" >> "$GH_LOG"
case "$*" in *--paginate*) printf '%s' "$GH_IDS" ;; esac
"""


def posted(folder: Path, ids: str, first_line: str = "<!-- soperator cost -->") -> str:
    """What the script asked of a stand-in for the gh command."""
    folder.mkdir()
    program = folder / "gh"
    program.write_text(GH, encoding="utf-8")
    program.chmod(0o755)
    comment = folder / "comment.md"
    comment.write_text(f"{first_line}\ntext\n", encoding="utf-8")
    log = folder / "log"
    log.touch()
    environ = {
        **os.environ,
        "PATH": f"{folder}:{os.environ['PATH']}",
        "GH_LOG": str(log),
        "GH_IDS": ids,
    }
    script = str(GITHUB / "scripts" / "post-cost-comment.sh")
    subprocess.run([script, "o/n", "7", str(comment)], env=environ, check=False)
    return log.read_text(encoding="utf-8")


def test_the_first_comment_is_posted_and_a_later_one_replaces_it(tmp_path: Path):
    first = posted(tmp_path / "first", "")
    assert "--method POST repos/o/n/issues/7/comments" in first
    later = posted(tmp_path / "later", "41\n42\n")
    assert "--method PATCH repos/o/n/issues/comments/41" in later
    assert "POST" not in later


def test_a_file_without_the_mark_is_not_posted(tmp_path: Path):
    assert posted(tmp_path / "bad", "", first_line="# Cost") == ""
