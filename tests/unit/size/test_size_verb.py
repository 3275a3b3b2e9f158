"""`soperator cost size`: one line for each refusal, JSON for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from cost.prices.book import PriceBook
from cost.size.answer import models_answer
from cost.size.memory import Training
from cost.size.shape import SizeError, rows
from infra.cli import context
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
    _, out, _ = run("--rule", "2024-deck", "--gpu-mem", "1")
    assert " 1024 " in out, "GPUs without a comma, in the deck's column as in the planner's"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--rule", "2024-deck", "--stack", "l40s-dev", "--seq", "8"], "--rule: --stack/-s, --seq"),
        (["Qwen3-8B", "--serve", "--rank", "8"], "--serve: --rank"),
        (["Qwen3-8B", "--streams", "8"], "without --serve: --streams"),
        (["Qwen3-8B", "--serve", "--no-checkpointing"], "checkpointing/--no-checkpointing"),
        (["Qwen3-8B", "--method", "full", "--rank", "8"], "--method full without --serve: --rank"),
        (["--gpu-mem", "48"], "of a whole catalog: --gpu-mem"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(arguments: list[str], told: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert f"{told} would change nothing" in err


def test_a_stack_before_the_command_is_refused_with_the_rule_too() -> None:
    given = ["cost", "-s", "l40s-dev", "size", "--rule", "2024-deck"]
    result = CliRunner().invoke(app, given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--rule: --stack/-s would change nothing" in result.stderr


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


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--no-checkpointing", "--checkpointing-layers", "5"),
            "--no-checkpointing and --checkpointing-layers exclude each other; give one of them",
        ),
        (
            ("--checkpointing-layers", "-1"),
            "'--checkpointing-layers': Input should be greater than or equal to 0, got '-1'",
        ),
    ],
)
@pytest.mark.parametrize("subject", [("Qwen3-14B",), ("--stack", "l40s-dev")])
def test_layers_to_recompute_that_cannot_be_meant_are_a_wrong_command(
    subject: tuple[str, ...], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = run(*subject, *arguments)
    assert (code, out) == (2, "")
    assert message in " ".join(err.replace("│", " ").split())


def test_the_help_says_what_becomes_of_more_layers_than_a_model_has() -> None:
    """Models without a name are of many sizes, so a number over one's own is no mistake there."""
    _, out, _ = run("--help")
    assert "one with fewer has all recomputed" in " ".join(out.replace("│", " ").split())
    asked = "--stack", "l40s-dev"
    assert models_of(*asked, "--checkpointing-layers", "999") == models_of(*asked)


def models_of(*arguments: str) -> dict[str, dict[str, Any]]:
    """Returns the models that are listed without a name, by name in the order listed."""
    code, out, _ = run(*arguments, "--format", "json")
    assert code == 0
    return {each["model"]: each for each in json.loads(out)["models"]}


@pytest.mark.feature("S000-18")
def test_without_a_model_those_that_the_stack_holds_are_proposed_the_largest_first() -> None:
    """Seed 000 chooses among Qwen3-8B to 32B by what its L40S hold."""
    found = models_of("--stack", "l40s-dev", "--method", "qlora", "--seq", "2048")
    named = list(found)
    assert [each for each in named if each.startswith("Qwen3-")][:3] == [
        "Qwen3-32B",
        "Qwen3-14B",
        "Qwen3-8B",
    ]
    sizes = [each["parameters"] for each in found.values()]
    assert all(next_ < 1.05 * one for one, next_ in pairwise(sizes))
    assert {each["preset"] for each in found.values()} == {"2gpu-64vcpu-384gb"}
    assert found["Qwen3-14B"]["licence"] == "Apache-2.0"
    assert found["Qwen3-14B"]["context_tokens"] == 40_960
    code, out, _ = run("--stack", "l40s-dev", "--method", "qlora", "--seq", "2048")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[4 : 4 + len(named)]] == named


@pytest.mark.feature("S000-18")
def test_a_model_is_proposed_just_where_its_own_answer_says_that_it_fits() -> None:
    """70B whole needs more H200 than the stack's four, whatever its strategy."""
    asked = "--stack", "h200-elastic", "--method", "full", "--seq", "2048"
    found = models_of(*asked)
    for name in rows():
        code, out, _ = run(name, *asked, "--format", "json")
        assert code == 0
        (preset,) = json.loads(out)["presets"]
        assert (name in found) == (preset["fits"] and preset["runs_here"]), name
        assert preset["nodes"] <= 4 or not preset["fits"], name
        if name in found:
            assert preset.items() <= found[name].items()
    assert set(rows()) - set(found) == {"Llama-2-70b", "Llama-3.1-70B"}


@pytest.mark.feature("S000-18")
def test_what_a_customer_needs_leaves_models_out() -> None:
    """Long chats: some models were not made for them; many at once: large ones have no room."""
    asked = "--stack", "l40s-dev", "--serve"
    few = models_of(*asked, "--seq", "10000")
    assert {"Qwen3-14B", "Qwen3-8B"} <= set(few)
    assert set(models_of(*asked, "--seq", "10000", "--streams", "16")) == set(few) - {
        "Qwen3-14B",
        "Qwen2.5-14B",
    }
    long = models_of(*asked, "--seq", "50000")
    assert not [name for name in long if name.startswith(("Qwen3-", "SmolLM2-", "Llama-2-"))]
    assert long


def test_a_stack_is_asked_for_no_more_nodes_than_it_has() -> None:
    code, out, _ = run("Qwen3-32B", "--stack", "l40s-dev", "--gpus", "16", "--format", "json")
    (preset,) = json.loads(out)["presets"]
    assert (code, preset["nodes"], preset["fits"]) == (0, 8, False)
    assert "needs 8 nodes, and l40s-dev has 4" in preset["reason"]


def test_where_no_model_is_held_the_way_out_is_told() -> None:
    code, out, said = run("--stack", "l40s-dev", "--serve", "--streams", "100000")
    assert (code, out) == (1, "")
    assert "l40s-dev: no model of the catalog fits on its workers; give --method qlora" in said


def test_a_stack_without_gpus_holds_no_model() -> None:
    spec = context.spec("l40s-dev")
    cpus = replace(spec.nodes.workers[0], platform="cpu-d3", preset="8vcpu-32gb")
    bare = replace(spec, nodes=replace(spec.nodes, workers=(cpus,)))
    with pytest.raises(SizeError, match="l40s-dev: no worker with GPUs; give the --stack of one"):
        models_answer(Training(), PriceBook.load("nebius"), bare)


def test_a_context_that_the_model_does_not_know_is_refused() -> None:
    code, out, said = run("Qwen3-14B", "--serve", "--seq", "1000000")
    assert (code, out) == (1, "")
    assert "--seq: 1,000,000 tokens in one context, but Qwen3-14B was made for 40,960" in said
    # A packed row of training holds many contexts.
    assert run("Qwen3-0.6B", "--seq", "65536")[0] == 0
