"""`soperator cost advise` on the shipped stacks and on curves that were pulled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from tests.unit.cost.loads import load_json, write_load

RUNNER = CliRunner()
SLO = "ttft_p99_s=5,tpot_p99_ms=500"
CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
SMALL = ["cost", "advise", "--model", "SmolLM2-135M-Instruct", "--chats-per-day", "1000"]
SMALL += ["--input-tokens", "6000"]
"""With its answers of 2,000 within the 8,192 that the model knows."""


def small_but(*words: str) -> list[str]:
    """SMALL with these options, in place of its own where it has them."""
    rest = SMALL[2:]
    kept = dict(zip(rest[::2], rest[1::2], strict=True))
    own = [
        part for option, value in kept.items() if option not in words for part in (option, value)
    ]
    return [*SMALL[:2], *own, *words]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    return tmp_path


def test_a_pulled_curve_is_ranked_among_the_estimates(state: Path) -> None:
    write_load(state / "runs" / "local" / "14", load_json(prompt_tokens=6000))
    result = RUNNER.invoke(app, [*SMALL, "--slo", SLO, "--format", "json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["slo"] == {"ttft_p99_s": "5", "tpot_p99_ms": "500"}
    assert (found["input_tokens"], found["output_tokens"]) == (6000, 2000)
    (measured,) = [each for each in found["candidates"] if each["basis"] == "measured"]
    assert measured["preset"] == "2gpu-64vcpu-384gb"
    assert measured["streams_per_server"] == 8
    assert "this machine bills nothing" in " ".join(found["notes"])


@pytest.mark.parametrize(
    "named", ["SmolLM2-135M", "{folder}/config.json", "{folder}/", "HuggingFaceTB/SmolLM2-135M"]
)
def test_a_curve_counts_however_its_model_is_named(state: Path, tmp_path: Path, named: str) -> None:
    """The record says SmolLM2-135M-Instruct, which has the shape of its base."""
    folder = tmp_path / "models" / "SmolLM2-135M-Instruct"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_load(state / "runs" / "local" / "14", load_json(prompt_tokens=6000))
    model = named.format(folder=folder)
    result = RUNNER.invoke(
        app, ["cost", "advise", "--model", model, *SMALL[4:], "--slo", SLO, "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    bases = [each["basis"] for each in json.loads(result.output)["candidates"]]
    assert bases.count("measured") == 1


def test_curves_of_every_stack_count_but_emulated_ones_only_where_asked_for(state: Path) -> None:
    """Each stack measures its own preset; the local stack's GPUs are declared, not there."""
    where = {"platform": "gpu-h100-sxm", "preset": "8gpu-128vcpu-1600gb", "device": "H100"}
    hardware = {**where, "num_nodes": 1, "num_gpus_declared": 8}
    curve = load_json(prompt_tokens=6000)
    write_load(state / "runs" / "h100-prod" / "15", curve, stack="h100-prod", hardware=hardware)
    write_load(state / "runs" / "local" / "14", curve)
    measured: dict[str, list[str]] = {}
    for stack in ("local", "l40s-dev"):
        words = [*SMALL, "--format", "json", "--stack", stack]
        found = json.loads(RUNNER.invoke(app, words).output)
        measured[stack] = sorted(
            each["platform"] for each in found["candidates"] if each["basis"] == "measured"
        )
    assert measured == {
        "local": ["gpu-h100-sxm", "gpu-l40s-d"],
        "l40s-dev": ["gpu-h100-sxm"],
    }


def test_tokens_of_the_question_win_over_the_stack_s(state: Path) -> None:
    write_load(state / "runs" / "local" / "14", load_json(prompt_tokens=6000))
    result = RUNNER.invoke(app, small_but("--input-tokens", "500", "--output-tokens", "100"))
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "500 tokens read before each of 1 answer and 100 written, no SLO" in text
    assert "Left aside (over 10 % off): gpu-l40s-d/2gpu-64vcpu-384gb" in text
    assert "Chats are as given." in text


def test_the_arithmetic_of_one_preset_is_shown_instead(state: Path) -> None:
    name = "gpu-h100-sxm/1gpu-16vcpu-200gb"
    result = RUNNER.invoke(app, [*SMALL, "--explain", name])
    assert result.exit_code == 0, result.output
    assert "1000 * 1 * 2 / 86400" in result.output
    assert "USD a chat" in result.output


def test_a_promise_that_nothing_keeps_is_shown_and_refused(state: Path) -> None:
    """A script must not take the first line of a table for an answer."""
    result = RUNNER.invoke(app, [*SMALL, "--slo", "tpot_p99_ms=0.001"])
    assert result.exit_code == 1
    assert "NO PRESET keeps this" in result.output
    assert "no preset keeps TPOT p99 <= 0.001 ms for SmolLM2-135M" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slo", "ttft=2"], "--slo ttft=2: expected NAME=N, NAME one of ttft_p99_s, tpot_p99_ms"),
        (["--slo", "ttft_p99_s=fast"], "--slo ttft_p99_s: got 'fast', expected a number over 0"),
        (["--slo", "ttft_p99_s=1,ttft_p99_s=2"], "ttft_p99_s is given twice"),
        (["--region", "moon"], "region: got 'moon', expected one of"),
        (["--peak-factor", "0.5"], "peak_factor: got 0.5, expected 1 to 1,000"),
        (["--model", "GPT-9"], "model: 'GPT-9' is not in the catalog"),
        (["--explain", "gpu-x/y"], "gpu-x/y: no such preset; known:"),
        (["--turns", "0"], "turns: got 0, expected 1 to 2,000"),
    ],
)
def test_a_wrong_question_is_refused_by_name(state: Path, words: list[str], message: str) -> None:
    result = RUNNER.invoke(app, small_but(*words))
    assert result.exit_code == 1, result.output
    assert message in result.output


def test_more_tokens_than_the_model_knows_are_refused(state: Path) -> None:
    words = ["--model", "Llama-3.1-8B", "--input-tokens", "900000", "--output-tokens", "10"]
    result = RUNNER.invoke(app, ["cost", "advise", *words, "--chats-per-day", "100"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "900,010 tokens in one context, but Llama-3.1-8B was made for 131,072" in result.stderr


def test_without_a_demand_nothing_is_advised(state: Path) -> None:
    result = RUNNER.invoke(app, ["cost", "advise", "--model", "Qwen3-8B"])
    assert result.exit_code == 1
    assert "--chats-per-day: missing, and local declares no chat.chats_per_day" in result.output
