"""`soperator cost size`: one line for each refusal, JSON for programs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from infra.cli.main import app


def run(*arguments: str) -> tuple[int, str, str]:
    """Returns exit code, standard output and standard error."""
    result = CliRunner().invoke(app, ["cost", "size", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_json_has_strategies_and_presets() -> None:
    code, out, _ = run("Qwen3-8B", "--seq", "2048", "--format", "json")
    values = json.loads(out)
    assert code == 0
    assert values["parameters"] == 8_190_735_360
    assert values["presets"][0]["fits"]
    assert {each["strategy"] for each in values["strategies"]} >= {"ddp", "fsdp", "offload"}


def test_the_rule_of_seed_004_needs_no_model() -> None:
    code, out, _ = run("--rule", "2024-deck")
    assert code == 0
    assert "Llama-2-70b fp32" in out


@pytest.mark.feature("S004-15")
def test_the_memory_of_a_gpu_is_asked_for_as_an_option() -> None:
    given = "--rule", "2024-deck", "--gpu-mem", "80", "--format", "json"
    code, out, _ = run("Llama-2-7b", *given)
    values = json.loads(out)
    assert (code, values["gpu_memory_gb"]) == (0, 80)
    assert values["rows"][0]["deck_gpus"] == 2, "four of 40 GB"


def test_serving_counts_streams() -> None:
    code, out, _ = run(
        "Qwen3-8B", "--serve", "--streams", "8", "--seq", "10000", "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["bytes_per_gpu"]["kv_cache"] == 8 * 10_000 * 147_456


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Qwen3-9B",), "model: 'Qwen3-9B' is not in the catalog; did you mean Qwen3-8B?"),
        (("Qwen3-8B", "--batch", "0"), "micro_batch_size: got 0, expected 1 or more"),
        (("Qwen3-8B", "--method", "full", "--dtype", "int4"), "dtype: int4 with method full"),
        (("Qwen3-8B", "--gpus", "0"), "--gpus: got 0, expected 1 or more"),
        (("Qwen3-8B", "--gpu-mem", "0"), "--gpu-mem: got 0, expected 1 or more"),
        (("Qwen3-8B", "--prices", "nobody"), "nobody"),
        (("no/such/config.json",), "no/such/config.json: cannot be read"),
        (("Qwen3-8B", "--serve", "--streams", "0"), "streams: got 0, expected 1 or more"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_exit_1(
    arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert message in err


def test_no_model_and_no_rule_is_wrong_usage() -> None:
    assert run()[0] == 2


def test_a_context_that_the_model_does_not_know_is_refused() -> None:
    code, out, said = run("Qwen3-14B", "--serve", "--seq", "1000000")
    assert (code, out) == (1, "")
    assert "--seq: 1,000,000 tokens in one context, but Qwen3-14B was made for 40,960" in said
    # A packed row of training holds many contexts.
    assert run("Qwen3-0.6B", "--seq", "65536")[0] == 0
