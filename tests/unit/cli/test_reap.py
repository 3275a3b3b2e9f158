"""`soperator reap`: says what is due; pauses by stack file and engine only when told to."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stacks.load
from infra.cli import context, reap
from infra.cli.main import app
from infra.reap.verdict import Verdict
from stacks.load import STACKS_DIR, load_stack

LIFETIME = "  soperator-stack:lifetime: {idle_hours: 8}\n"
PREVIEW = "preview --expect-no-changes --non-interactive --stack l40s-dev"
UP = "up --yes --non-interactive --stack l40s-dev"
DUE = Verdict(is_due=True, reason="no job since yesterday")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """A stack file with a lifetime, and an engine that only writes down how it was called."""
    found = tmp_path / "stacks"
    found.mkdir()
    text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8")
    text = text.replace("config:\n", f"config:\n{LIFETIME}", 1)
    (found / "Pulumi.l40s-dev.yaml").write_text(text, encoding="utf-8")
    engine = tmp_path / "bin" / "pulumi"
    engine.parent.mkdir()
    engine.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n'
        "case $1 in preview) exit ${PREVIEW_STATUS:-0} ;; *) exit ${ENGINE_STATUS:-0} ;; esac\n"
    )
    engine.chmod(0o755)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(context, "environ", lambda: dict(os.environ))
    monkeypatch.setattr(stacks.load, "STACKS_DIR", found)
    monkeypatch.setattr(
        stacks.load,
        "load_stack",
        lambda name, environ=None: load_stack(name, found, environ=environ),
    )
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["reap", "--stack", "l40s-dev", *words])


def judged(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    monkeypatch.setattr(reap, "_verdict", lambda spec, identity, end_jobs: verdict)


def called(folder: Path) -> list[str]:
    return (folder.parent / "called").read_text().splitlines()


def is_paused(folder: Path) -> bool:
    return load_stack("l40s-dev", folder).nodes.paused


def test_without_act_it_only_says_what_is_due(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    done = run()
    assert done.exit_code == 0, done.output
    assert "l40s-dev: due: no job since yesterday" in done.output
    assert "--act pauses it" in done.output
    assert not is_paused(folder)
    assert not (folder.parent / "called").exists()


def test_told_to_act_it_pauses_the_file_and_runs_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    done = run("--act")
    assert done.exit_code == 0, done.output
    assert is_paused(folder)
    assert called(folder) == [PREVIEW, UP]


def test_an_engine_that_fails_is_the_exit_code_and_the_next_run_tries_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    monkeypatch.setenv("ENGINE_STATUS", "255")
    assert run("--act").exit_code == 255
    assert not is_paused(folder)
    monkeypatch.setenv("ENGINE_STATUS", "0")
    assert run("--act").exit_code == 0
    assert is_paused(folder)


def test_a_checkout_that_is_not_deployed_pauses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would apply whatever else was edited there, or take back what others did."""
    judged(monkeypatch, DUE)
    monkeypatch.setenv("PREVIEW_STATUS", "255")
    done = run("--act")
    assert done.exit_code == 1
    assert "this checkout is not what is deployed" in done.output
    assert not is_paused(folder)
    assert called(folder) == [PREVIEW]


def test_what_is_not_due_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, Verdict(is_due=False, reason="1 jobs run or wait: 12 finetune"))
    done = run("--act")
    assert done.exit_code == 0
    assert "not due: 1 jobs run or wait" in done.output
    assert not is_paused(folder)


def test_a_paused_stack_is_asked_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DUE)
    run("--act")
    (folder.parent / "called").unlink()
    monkeypatch.setattr(reap, "_verdict", lambda *words, **options: pytest.fail("it was asked"))
    done = run("--act")
    assert "is paused already" in done.output
    assert called(folder) == [PREVIEW]


def test_a_file_that_says_paused_is_not_believed_while_the_engine_sees_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    run("--act")
    monkeypatch.setenv("PREVIEW_STATUS", "255")
    done = run("--act")
    assert done.exit_code == 1
    assert "that is not what is deployed" in done.output
    assert called(folder) == [PREVIEW, UP, PREVIEW]


def test_a_stack_without_a_lifetime_is_refused_with_what_to_declare(folder: Path) -> None:
    path = folder / "Pulumi.l40s-dev.yaml"
    path.write_text(path.read_text().replace(LIFETIME, ""))
    done = run()
    assert done.exit_code == 1
    assert "declare lifetime.idle_hours or lifetime.until" in done.output


def test_the_verdict_is_there_for_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DUE)
    assert json.loads(run("--format", "json").stdout) == {
        "stack": "l40s-dev",
        "is_due": True,
        "reason": "no job since yesterday",
        "acts": False,
    }
