"""`soperator report`: the page, and the loop as text and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from tests.unit.report.loops import write_loop

RUNNER = CliRunner()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


def test_the_loop_is_printed_as_text_and_writes_no_page(state: Path) -> None:
    write_loop(state)
    result = RUNNER.invoke(app, ["report", "--format", "table"])
    assert result.exit_code == 0, result.output
    assert "Cost per chat before and after" in result.stdout
    assert not (state / "report.html").exists()


def test_the_loop_goes_to_a_file_as_json(state: Path) -> None:
    write_loop(state, load=False)
    file = state / "loop.json"
    result = RUNNER.invoke(app, ["report", "--format", "json", "--output", str(file)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(file)
    found = json.loads(file.read_text())
    assert found["operating_point"] is None
    assert [line.partition(":")[0] for line in found["missing"]] == ["Load"]


def test_the_page_is_still_what_is_written_without_a_format(state: Path) -> None:
    write_loop(state)
    result = RUNNER.invoke(app, ["report"])
    assert result.stdout.strip() == str(state / "report.html")
    assert "What the finetune brought" in (state / "report.html").read_text()


def test_a_damaged_curve_is_refused_by_name(state: Path) -> None:
    write_loop(state)
    path = state / "runs" / "local" / "14" / "load.json"
    path.write_text("{")
    for words in (["report"], ["cost", "chat"], ["cost", "advise", "--model", "SmolLM2-135M"]):
        more = ["--chats-per-day", "10", "--input-tokens", "6000"] if "advise" in words else []
        result = RUNNER.invoke(app, [*words, *more])
        assert result.exit_code == 1
        assert f"{path}: not valid JSON" in result.output.replace("\n", "")
