"""`soperator cost prices` tells source, day and age of each price, and refreshes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from infra.providers.nebius import sdk
from tests.unit.nebius_api.conftest import Served

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


def test_the_prices_in_use_and_those_that_are_not_are_listed():
    result = RUNNER.invoke(app, ["cost", "prices", "--stack", "h100-prod"])
    assert result.exit_code == 0, result.output
    used, unused = result.stdout.split("Readings that are not used:")
    assert "gpu-h100-sxm/gpu" in used
    assert "4.50" in used
    assert "2026-10-05" in used
    assert "3.85" in unused
    assert "2.95" in unused
    assert "gpu-b300-sxm/gpu" not in result.stdout


def test_the_whole_book_can_be_listed():
    result = RUNNER.invoke(app, ["cost", "prices", "--stack", "h100-prod", "--all"])
    assert "object-storage/enhanced-throughput" in result.stdout


def test_programs_get_json():
    result = RUNNER.invoke(app, ["cost", "prices", "--stack", "l40s-dev", "--format", "json"])
    document = json.loads(result.stdout)
    (price,) = [one for one in document["prices"] if one["sku"] == "gpu-l40s-d/gpu"]
    assert (price["usd"], price["unit"], price["layer"]) == ("1.35", "GPU-hour", "book")
    assert price["is_undated"] is True


def test_a_refresh_keeps_estimates_and_says_how_to_use_them(emulator: Served, state: Path):
    result = RUNNER.invoke(app, ["cost", "prices", "--refresh", "--stack", "h100-prod"])
    assert result.exit_code == 0, result.output
    assert (state / "prices" / "emulator" / "eu-north1.json").is_file()
    assert "5 prices of CalculatorService of the emulated cloud" in result.stderr
    assert "set live_prices: true" in result.stderr


def test_a_refresh_without_an_answer_is_one_line_and_the_prices_stay(
    monkeypatch: pytest.MonkeyPatch, state: Path
):
    monkeypatch.setenv(sdk.ENDPOINT_VARIABLE, "http://127.0.0.1:9")
    monkeypatch.setenv(sdk.TOKEN_VARIABLE, "local-token")
    sdk.shared_sdk.cache_clear()
    result = RUNNER.invoke(app, ["cost", "prices", "--refresh", "--stack", "l40s-dev"])
    sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("soperator: estimate prices: no answer")
    assert line.endswith("the prices stay as they were")
    assert "gpu-l40s-d/gpu" in result.stdout
    assert not (state / "prices").exists()
