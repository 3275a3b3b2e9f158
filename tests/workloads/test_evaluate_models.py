"""The evaluate job's result: intervals, tests, precisions, two ranks, settings, lm-eval."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.workloads.ranks import REPOSITORY, run_ranks
from workloads.common.exit_codes import ExitCode
from workloads.job import run_job


def evaluation(record: dict[str, Any]) -> dict[str, Any]:
    """The result file of a record."""
    return json.loads(Path(record["artifacts"]["evaluation"]).read_text())


@pytest.fixture
def trained(run: Any) -> Any:
    """`run`, after prepare-data and train."""
    assert run("prepare-data")[0] == 0
    assert run("train")[0] == 0
    return run


@pytest.mark.feature("S000-07", "S000-41")
def test_every_metric_of_rows_has_an_interval_and_a_paired_test(trained: Any) -> None:
    code, record = trained("evaluate")
    assert code == 0
    result = evaluation(record)
    names = set(result["base_model"]["intervals"])
    assert names >= {
        "perplexity",
        "message_length_avg",
        "bleu",
        "rouge1",
        "rouge2",
        "rougeL",
        "exact_match",
        "token_f1",
        "function_name_accuracy",
        "argument_name_accuracy",
        "argument_accuracy",
        "call_parse_failure",
    }
    for model in ("base_model", "finetuned_model"):
        for name, bounds in result[model]["intervals"].items():
            assert bounds["low"] <= result[model][name] <= bounds["high"], name
    assert set(result["significance"]) == names
    for name, test in result["significance"].items():
        before, after = result["base_model"][name], result["finetuned_model"][name]
        assert test["difference"] == pytest.approx(after - before)
        assert 0 < test["p_value"] <= 1
        assert test["num_rows"] == (4 if name == "perplexity" else 3)
    assert result["sampling"] == {"resamples": 2000, "confidence": 0.95, "seed": 0}
    assert result["test_set"]["overlap"] == {}


@pytest.mark.feature("S000-12")
def test_a_second_run_gives_equal_numbers_and_samples(trained: Any) -> None:
    first, second = evaluation(trained("evaluate")[1]), evaluation(trained("evaluate")[1])
    for part in ("significance", "headers", "test_set"):
        assert first[part] == second[part]
    for model in ("base_model", "finetuned_model"):
        for key in ("intervals", "sample_generations", "perplexity"):
            assert first[model][key] == second[model][key]


def test_the_settings_in_force_are_kept_with_the_run(trained: Any) -> None:
    _, record = trained("evaluate", "evaluate.num_samples=1")
    kept = json.loads(Path(record["artifacts"]["config"]).read_text())
    assert kept["evaluate"]["num_samples"] == 1
    assert kept["evaluate"]["resamples"] == 2000


@pytest.mark.feature("S004-16")
def test_bf16_8_bit_and_4_bit_of_one_model_are_compared(trained: Any) -> None:
    """The tiny model is 32 wide: bitsandbytes' 4-bit kernel for CPUs wants 64, and says so."""
    code, record = trained(
        "evaluate", 'evaluate.precisions=["bf16","8bit","4bit"]', "evaluate.num_rows=2"
    )
    assert code == 0, record["reason"]
    precisions = evaluation(record)["precisions"]
    assert list(precisions) == ["bf16", "8bit", "4bit"]
    whole, half = precisions["bf16"], precisions["8bit"]
    assert (whole["outcome"], half["outcome"]) == ("PASS", "PASS")
    assert half["weight_bytes"] < whole["weight_bytes"]
    assert half["against_bf16"]["weight_bytes_percent"] < 0
    against = half["against_bf16"]["significance"]
    assert set(against) >= {"perplexity", "rougeL"}
    cost = half["perplexity"] - whole["perplexity"]
    assert against["perplexity"]["difference"] == pytest.approx(cost)
    assert half["perplexity"] == pytest.approx(whole["perplexity"], rel=0.5)
    assert half["perplexity"] != whole["perplexity"], "rows of its own, not those of 16 bits"
    assert half["output_tokens_per_s"] > 0
    if precisions["4bit"]["outcome"] == "NOT RUN":
        assert "RuntimeError: " in precisions["4bit"]["reason"]


@pytest.mark.feature("S004-16")
def test_4_bits_of_a_model_that_is_64_wide_give_nearly_its_logits(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from workloads.common.dist import World
    from workloads.evaluate.subject import Subject, load_precision

    torch.manual_seed(0)
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=300, **size, **heads)).save_pretrained(tmp_path)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    subject = Subject(name="base", model_dir=tmp_path, tuned_dir=None)
    ids = torch.tensor([[5, 6, 7, 8]])
    logits, size_bytes = {}, {}
    for precision in ("bf16", "8bit", "4bit"):
        model = load_precision(subject, precision, here, tmp_path)
        size_bytes[precision] = model.get_memory_footprint()
        with torch.inference_mode():
            logits[precision] = model(ids).logits.float().flatten()
    assert size_bytes["4bit"] < size_bytes["8bit"] < size_bytes["bf16"]
    for precision, least in (("8bit", 0.99), ("4bit", 0.9)):
        found = torch.cosine_similarity(logits["bf16"], logits[precision], dim=0)
        assert found > least


@pytest.mark.feature("S003-43")
def test_a_precision_that_cannot_be_loaded_is_not_run_with_its_reason(
    trained: Any, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.evaluate import __main__ as evaluate

    (places / "scratch").mkdir()
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(places / "scratch"))
    real, folders = evaluate.load_precision, set[Path]()

    def no_8_bit(subject: Any, precision: Any, *rest: Any) -> Any:
        folders.add(rest[-1])
        if precision == "8bit":
            raise RuntimeError("no kernel\nfor this device")
        return real(subject, precision, *rest)

    monkeypatch.setattr(evaluate, "load_precision", no_8_bit)
    code, record = trained("evaluate", 'evaluate.precisions=["bf16","8bit"]')
    assert code == 0
    assert evaluation(record)["precisions"]["8bit"] == {
        "outcome": "NOT RUN",
        "reason": "RuntimeError: no kernel for this device",
    }
    assert folders == {places / "scratch"}, "whole copies are no results, which are kept"


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("evaluate.resamples=0", "resamples: got 0, expected > 0"),
        ("evaluate.confidence=1", "confidence: got 1.0, expected 0 to 1"),
        ('evaluate.precisions=["4bit"]', "precisions: got 4bit, expected bf16 first"),
        ('evaluate.precisions=["bf16","bf16"]', "precisions: got bf16, bf16, expected each once"),
        ('evaluate.precisions=["3bit"]', "expected one of bf16, 8bit, 4bit"),
        ("evaluate.num_row=3", "did you mean 'num_rows'?"),
    ],
)
def test_bad_settings_are_refused(places: Path, run: Any, override: str, reason: str) -> None:
    code, record = run("evaluate", override)
    assert code == ExitCode.BAD_CONFIG
    assert reason in record["reason"]


@pytest.mark.feature("S002-06")
def test_two_ranks_give_the_result_of_one(trained: Any, recipe_file: Path, places: Path) -> None:
    alone = evaluation(trained("evaluate", "evaluate.batch_size=1")[1])
    (places / "results" / "rows").rename(places / "rows_of_one")
    done = run_ranks(
        *("-m", "workloads.evaluate", "--recipe", str(recipe_file)),
        *("--set", "evaluate.batch_size=1", "--set", "evaluate.cpu_threads=1"),
        num_ranks=2,
    )
    assert done.returncode == 0, done.stderr
    files = list((places / "results" / "rows").rglob("*.jsonl"))
    assert {path.name for path in files} == {"12.0.jsonl", "12.1.jsonl"}
    made = [
        (path.parent, line["part"], line["row"])
        for path in files
        for line in map(json.loads, path.read_text().splitlines())
    ]
    assert len(made) == len(set(made)), "each rank made rows of its own"
    both = json.loads((places / "results" / "12" / "evaluation.json").read_text())
    for model in ("base_model", "finetuned_model"):
        assert both[model]["sample_generations"] == alone[model]["sample_generations"]
        assert both[model]["perplexity"] == pytest.approx(alone[model]["perplexity"], rel=1e-5)
    for name, test in both["significance"].items():
        assert test["p_value"] == pytest.approx(alone["significance"][name]["p_value"])


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_killed_rank_loses_no_finished_row(run: Any, recipe_file: Path, places: Path) -> None:
    """SIGKILL, as the kernel's memory killer sends it; the launcher starts both ranks anew."""
    run("prepare-data")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "workloads.common.launch", "--nnodes=1"),
            *("--nproc-per-node=2", "--max-restarts=1"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *("-m", "tests.workloads.evaluate_losing_a_rank", "--recipe", str(recipe_file)),
            *("--set", "evaluate.cpu_threads=1"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (places / "killed").is_file(), "no rank was lost"
    (folder,) = (places / "results" / "rows").iterdir()
    made = [
        (line["part"], line["row"])
        for path in folder.glob("*.jsonl")
        for line in map(json.loads, path.read_text().splitlines())
    ]
    everything = [("answer", row) for row in range(3)] + [("loss", row) for row in range(4)]
    assert sorted(made) == everything, "a finished row was made again, or is not there"
    rows = (places / "results" / "original" / "rows.jsonl").read_text().splitlines()
    assert len(rows) == 3


@pytest.mark.parametrize("kind", ["evaluate", "lm_eval"])
def test_what_rank_0_does_alone_may_take_longer_than_ranks_wait_for_each_other(
    trained: Any, recipe_file: Path, kind: str
) -> None:
    """Hashes of large weights, speeds, and all of lm-eval: the other ranks gave up after 600 s."""
    made = run_ranks(
        *("-m", "tests.workloads.evaluate_slowly", kind, "--recipe", str(recipe_file)),
        *("--set", 'evaluate.lm_eval_tasks=["arc"]'),
        num_ranks=2,
    )
    assert made.returncode == 0, made.stderr


def lm_eval(recipe_file: Path, capsys: Any, *overrides: str) -> tuple[int, dict[str, Any]]:
    """Runs the job lm_eval: its exit code and record."""
    from workloads.evaluate.lm_eval_job import main

    arguments = ["--recipe", str(recipe_file)]
    for override in overrides:
        arguments += ["--set", override]
    capsys.readouterr()
    code = run_job("lm_eval", main, arguments)
    return int(code), json.loads(capsys.readouterr().out.splitlines()[-1])


def test_lm_eval_is_not_run_where_it_is_not_installed(
    trained: Any, recipe_file: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, record = lm_eval(recipe_file, capsys, 'evaluate.lm_eval_tasks=["arc_easy"]')
    assert (code, record["outcome"]) == (ExitCode.NOT_RUN, "NOT_RUN")
    assert "lm-eval is not installed" in record["reason"]


def test_lm_eval_without_tasks_is_a_wrong_recipe(
    trained: Any, recipe_file: Path, capsys: Any
) -> None:
    code, record = lm_eval(recipe_file, capsys)
    assert (code, record["outcome"]) == (ExitCode.BAD_CONFIG, "FAIL")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in with the signatures and refusals of lm-eval 0.4.13; what it was asked."""
    asked: list[dict[str, Any]] = []

    class TaskManager:
        def load(self, names: list[str]) -> None:
            if names == ["arc_easy"]:
                raise ConnectionError("Couldn't reach 'allenai/ai2_arc' on the Hub")
            if names == ["arc_twice"]:
                raise ValueError("Duplicate task 'arc' in the paths")
            if names != ["arc"]:
                raise KeyError(f"Spec '{names[0]}' is not a registered task/group/tag name")

    def simple_evaluate(**options: Any) -> dict[str, Any]:
        asked.append(options)
        return {"results": {"arc": {"alias": "arc", "acc,none": 0.25 * len(asked)}}}

    for name, values in {
        "lm_eval": {"simple_evaluate": simple_evaluate},
        "lm_eval.tasks": {"TaskManager": TaskManager},
    }.items():
        stand_in = types.ModuleType(name)
        vars(stand_in).update(values, __spec__=types.SimpleNamespace(name=name))
        monkeypatch.setitem(sys.modules, name, stand_in)
    return asked


def test_lm_eval_gets_both_models_and_its_numbers_are_recorded(
    trained: Any, recipe_file: Path, capsys: Any, harness: list[dict[str, Any]]
) -> None:
    code, record = lm_eval(
        recipe_file, capsys, 'evaluate.lm_eval_tasks=["arc"]', "evaluate.lm_eval_limit=5"
    )
    assert (code, record["outcome"]) == (0, "PASS")
    assert [("peft" in each["model_args"], each["limit"]) for each in harness] == [
        (False, 5),
        (True, 5),
    ]
    assert (record["metrics"]["base_arc_acc"], record["metrics"]["arc_acc"]) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("task", "exit_code", "said"),
    [
        ("arc_esay", ExitCode.BAD_CONFIG, "Spec 'arc_esay' is not a registered"),
        ("arc_twice", ExitCode.BAD_CONFIG, "Duplicate task 'arc' in the paths; `lm-eval ls"),
        ("arc_easy", ExitCode.BAD_DATA, "Couldn't reach 'allenai/ai2_arc' on the Hub"),
    ],
)
def test_a_task_of_lm_eval_that_cannot_be_read_is_told_before_a_model_is_loaded(
    trained: Any,
    recipe_file: Path,
    capsys: Any,
    harness: list[dict[str, Any]],
    task: str,
    exit_code: ExitCode,
    said: str,
) -> None:
    code, record = lm_eval(recipe_file, capsys, f'evaluate.lm_eval_tasks=["{task}"]')
    assert (code, harness) == (exit_code, [])
    assert record["reason"].startswith(f"evaluate.lm_eval_tasks: {said}")


def test_tasks_of_an_older_lm_eval_are_read_by_its_own_name_for_that(
    trained: Any,
    recipe_file: Path,
    capsys: Any,
    harness: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`load` came with 0.4.13."""
    manager = sys.modules["lm_eval.tasks"].TaskManager
    monkeypatch.setattr(manager, "load_task_or_group", manager.load, raising=False)
    monkeypatch.delattr(manager, "load")
    assert lm_eval(recipe_file, capsys, 'evaluate.lm_eval_tasks=["arc"]')[0] == 0
    assert len(harness) == 2


def test_lm_eval_itself_scores_a_task_of_the_users_own(
    trained: Any, recipe_file: Path, capsys: Any, tmp_path: Path
) -> None:
    pytest.importorskip("lm_eval", reason="needs lm-eval, which the project does not ship")
    rows = [
        {"question": f"{a} plus {b}?", "choices": [str(a + b), "no"], "answer": 0}
        for a in (2, 3)
        for b in (4, 5)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    task = tmp_path / "sums.yaml"
    task.write_text(
        f"""task: sums
dataset_path: json
dataset_kwargs: {{data_files: {tmp_path}/rows.jsonl}}
output_type: multiple_choice
test_split: train
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: "{{{{choices}}}}"
"""
    )
    code, record = lm_eval(recipe_file, capsys, f'evaluate.lm_eval_tasks=["{task}"]')
    assert (code, record["outcome"]) == (0, "PASS"), record["reason"]
    assert record["metrics"].keys() >= {"sums_acc", "base_sums_acc", "sums_acc_stderr"}
    assert all(0 <= value <= 1 for value in record["metrics"].values())
    code, record = lm_eval(recipe_file, capsys, 'evaluate.lm_eval_tasks=["no_such_task"]')
    assert (code, "no_such_task" in record["reason"]) == (ExitCode.BAD_CONFIG, True)
