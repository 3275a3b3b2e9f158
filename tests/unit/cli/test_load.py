"""`soperator runs load --url` asks from here, and its record lies where cost/ looks for one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cost.run_record import load_run_records
from infra.cli.main import app
from tests.bench.stand_in import Behaviour, running

RUNNER = CliRunner()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.delenv("SOPERATOR_SERVE_API_KEY", raising=False)
    return tmp_path


def rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}) + "\n")
    return path


def test_a_server_anywhere_is_measured_and_the_record_is_the_stack_s(state: Path):
    with running(lambda *_: Behaviour()) as (_, url):
        words = ["runs", "load", "--url", url, "--rows", str(rows(state))]
        words += ["--preset", "p/q", "--set", "load.sweep=[1]", "--set", "load.open_loop.shares=[]"]
        result = RUNNER.invoke(app, words)
    assert result.exit_code == 0
    (record,), problems = load_run_records(state / "runs" / "local")
    assert problems == ()
    assert (record.kind, record.stack, record.model) == ("load", "local", "SmolLM2-135M-Instruct")
    assert record.hardware is not None
    assert (record.hardware.platform, record.hardware.preset) == ("p", "q")
    assert record.metrics["output_tokens_per_s"] > 0


def test_a_wrong_address_ends_with_the_status_of_the_test(state: Path):
    with running(lambda *_: Behaviour()) as (_, url):
        words = ["runs", "load", "--url", f"{url}/x", "--rows", str(rows(state))]
        assert RUNNER.invoke(app, words).exit_code == 2


THERE = ["--dry-run", "--url", "http://127.0.0.1:1/v1"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["7", "--url", "http://127.0.0.1:1/v1"], "runs load: give a job id or --url, not both"),
        (["--preset", "p/q"], "--preset: only with --url; for a job use --set load.prompts"),
        (["-s", "h100-prod"], "h100-prod: jobs: no load test; declare one"),
        ([*THERE, "--set", "load.open_loop.rates_per_s=[NaN]"], "load.open_loop.rates_per_s"),
        ([*THERE, "--set", "load.sweep=[-1]"], "load.sweep"),
        ([*THERE, "--set", "load.swep=[1]"], "load.swep"),
        (["--dry-run", "--url", "127.0.0.1:8000"], "--url 127.0.0.1:8000: not an address"),
        ([*THERE, "--rows", "/dev/zero"], "--rows /dev/zero: no such file; give a .jsonl file"),
        ([*THERE, "--tokenizer", "none"], "--tokenizer none: no such folder; give a model's"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(state: Path, words: list[str], line: str):
    result = RUNNER.invoke(app, ["runs", "load", *words])
    assert result.exit_code == 1
    assert line in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_dry_run_prints_words_that_a_shell_reads_as_they_were_given(state: Path) -> None:
    there = "http://127.0.0.1:1/$(id)"
    shown = RUNNER.invoke(app, ["runs", "load", "--dry-run", "--url", there])
    assert shown.exit_code == 0, shown.stderr
    assert there in shlex.split(shown.stdout)
    assert "'http://127.0.0.1:1/$(id)'" in shown.stdout


def test_a_path_that_is_a_loop_of_links_is_refused(state: Path) -> None:
    loop = state / "loop"
    loop.symlink_to(loop)
    for option in ("--rows", "--tokenizer"):
        refused = RUNNER.invoke(app, ["runs", "load", *THERE, option, str(loop)])
        assert refused.exit_code == 1
        assert f"{option} {loop}: no such" in refused.stderr
