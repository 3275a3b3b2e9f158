"""`--plan`: ranks, steps and refusals are those of the run, with a shipped plan and without."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from workloads.train.__main__ import show_plan
from workloads.train.inputs import PLAN_VARIABLE


@pytest.mark.feature("S000-20")
def test_without_a_plan_the_recipes_hardware_gives_the_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It once said 8 rows for a run of 128, of 16 GPUs, and nothing of what else can be known."""
    for name in (PLAN_VARIABLE, "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert show_plan(["--recipe", "qwen2_7b_lora_16xh100", "--plan"]) == 0
    told = capsys.readouterr().out
    assert "ranks       16, by the recipe's name (16xh100)" in told
    assert "2 rows x 4 micro batches x 16 ranks = 128 rows of 4096 tokens" in told
    assert "steps       1 x rows of prepared/glaive_qwen2_7b / 128, rounded up" in told
    assert f"{PLAN_VARIABLE} is not set. Memory, hours, dollars and why: soperator submit" in told
    assert (
        "soperator cost size Qwen2-7B-Instruct --method lora --rank 64 --seq 4096 --batch 2" in told
    )
    assert "$" not in told
    assert "model       Qwen2-7B-Instruct: Apache-2.0, commercial use allowed; https://" in told
    for criterion in ("safeguards: aligned", "trainability: adapters on one L40S"):
        assert f"model       {criterion}" in told
    assert show_plan(["--recipe", "qwen2_7b_full_4xh200", "--plan", "--ranks=8"]) == 0
    told = capsys.readouterr().out
    assert "ranks       8, by --ranks" in told
    assert "strategy    fsdp: by train.strategy" in told
    assert show_plan(["--recipe", "qwen2_7b_full_4xh200", "--plan", "--ranks=0"]) == 2


def test_steps_of_epochs_are_counted_where_the_data_lies(
    places: Path, run: Any, recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prepare-data")
    sets = ("train.max_steps=null", "train.epochs=3", "train.eval.every_epochs=1")
    epochs = [f"--set={each}" for each in sets]
    assert show_plan([f"--recipe={recipe_file}", "--plan", "--ranks=2", *epochs]) == 0
    told = capsys.readouterr().out
    steps = re.search(r"^steps +(\d+) = 3 x (\d+) rows / 2, rounded up$", told, re.MULTILINE)
    assert steps, told
    assert "\nvalidation  every 1 epochs on up to 512 held-out rows\n" in told
    assert run("train", "train.max_steps=null", "train.epochs=3")[0] == 0
    num_steps = 3 * int(steps[2])
    assert (
        len((places / "results" / "12" / "loss_curve.jsonl").read_text().splitlines()) == num_steps
    )
    assert int(steps[1]) == -(-num_steps // 2)


def test_a_plan_that_does_not_fit_is_printed_and_then_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {
        "schema_version": 2,
        "recipe_model": "Qwen/Qwen2-7B-Instruct",
        "parameters": 7_615_616_512,
        "world_size": 16,
        "hardware": {"usable_gib_per_rank": 72.9},
        "strategy": "ddp",
        "reason": "needs 90.0 GiB of 72.9 GiB a GPU",
        "fits": False,
        "largest_micro_batch": 1,
        "memory_gib_per_rank": {"weights": 14.8, "total": 90.0},
        "method": "lora",
        "dtype": "bf16",
        "sequence_length": 4096,
        "micro_batch_size": 2,
        "gradient_checkpointing": 28,
        "layers": 28,
        "steps": 321,
    }
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan), encoding="utf-8")
    monkeypatch.setenv(PLAN_VARIABLE, str(path))
    assert show_plan(["--config", "qwen2_7b_lora_16xh100", "--plan"]) == 2
    told = capsys.readouterr()
    assert "strategy    ddp: needs 90.0 GiB of 72.9 GiB a GPU" in told.out
    assert "recomputed  activations of 28 of 28 layers" in told.out
    assert "fits        NO, 90.000 of 72.900 GiB a rank; largest micro batch 1" in told.out
    assert told.out.splitlines()[-1] == "refused     this run does not start as it is"
    assert "this run does not fit: needs 90.0 GiB of 72.9 GiB" in told.err
