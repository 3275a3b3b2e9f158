"""Generation, merging, perplexity, the deltas of seed 000, and the evaluate job."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from workloads.common.exit_codes import ExitCode
from workloads.data.chats import text_of
from workloads.evaluate.compare_models import comparison


@pytest.mark.feature("S000-45", "S000-46", "S000-47")
def test_the_deltas_have_the_signs_and_values_of_the_seeds_example() -> None:
    base = {
        "perplexity": 7.033111572265625,
        "message_length_avg": 671.0,
        "output_tokens_per_s": 100,
    }
    tuned = {
        "perplexity": 4.704128742218018,
        "message_length_avg": 125.1,
        "output_tokens_per_s": 16.53102337769744,
    }
    deltas = comparison(base, tuned)
    assert deltas["perplexity"] == pytest.approx(33.11454405517637, rel=1e-12)
    assert deltas["speed"] == pytest.approx(-83.46897662230256, rel=1e-12)
    assert deltas["message_length"] == pytest.approx(-81.35618479880775, rel=1e-12)
    worse = comparison(tuned, base)
    assert worse["perplexity"] == pytest.approx(-49.5093033, rel=1e-6), "a rise is negative"


PROMPTS = [[7, 8, 9, 10, 11, 12, 13], [20, 21, 22], [30, 31, 32, 33, 34]]


def test_batched_generation_equals_transformers_own_one_by_one(model: Any) -> None:
    import torch

    from workloads.evaluate.generate import generate_in_batches

    stop = frozenset({model.generation_config.eos_token_id})
    ours = {
        row: tokens
        for made in generate_in_batches(
            model, PROMPTS, batch_size=3, max_new_tokens=12, pad_id=model.config.pad_token_id,
            stop_ids=stop,
        )
        for row, tokens in made.items()
    }  # fmt: skip
    assert sorted(ours) == [0, 1, 2]
    for row, prompt in enumerate(PROMPTS):
        tokens = ours[row]
        made = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0]
        expected = [t for t in made[len(prompt) :].tolist() if t not in stop]
        assert list(tokens) == expected
        assert expected


@pytest.mark.feature("S000-40")
def test_generation_stops_at_the_end_of_turn_and_counts_only_what_it_made(model: Any) -> None:
    from workloads.evaluate.generate import generate

    free = generate(model, PROMPTS[:1], max_new_tokens=8, pad_id=0, stop_ids=frozenset())
    assert free.num_decoded == 7  # the first token comes from the prefill
    stop = free.token_ids[0][3]
    before = free.token_ids[0][: free.token_ids[0].index(stop)]
    stopped = generate(model, PROMPTS[:1], max_new_tokens=8, pad_id=0, stop_ids=frozenset({stop}))
    assert stopped.token_ids[0] == before
    assert stopped.num_decoded == len(before)


@pytest.mark.feature("S000-40")
def test_reading_and_writing_are_two_speeds_of_all_streams_together(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts with 7, 3 and 5 tokens the model reads 15, not the 21 that padding makes."""
    from workloads.evaluate import generate

    # Before the prefill, after it, after the decode: the warm-up, then three runs.
    runs = [(0, 9, 99), (0, 3, 13), (0, 5, 25), (0, 1, 3)]
    readings = iter([float(moment) for run in runs for moment in run])
    monkeypatch.setattr(generate, "_clock", lambda device: next(readings))
    speed = generate.measure_speed(model, PROMPTS, num_tokens=6, pad_id=0)
    assert speed["prefill_tokens_per_s"] == 15 / 3
    # Five of six tokens a stream are decoded, the first comes from the prefill.
    assert speed["output_tokens_per_s"] == 3 * 5 / 10


@pytest.mark.parametrize("dora", [False, True])
def test_a_merged_adapter_gives_the_unmerged_logits(
    model: Any, model_dir: Path, tmp_path: Path, dora: bool
) -> None:
    import torch

    from workloads.evaluate.subject import load_tuned
    from workloads.recipes.train import LoraConfig, TrainConfig
    from workloads.train.model import attach_lora

    config = TrainConfig(
        dataset="x", max_steps=1, learning_rate=1.0, lora=LoraConfig(rank=4, alpha=8, dora=dora)
    )
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        before = model(ids).logits
        tuned = attach_lora(model, config).eval()
        torch.testing.assert_close(tuned(ids).logits, before)  # B starts at zero
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
        unmerged = tuned(ids).logits
        assert not torch.allclose(unmerged, before, atol=1e-2)
        tuned.save_pretrained(tmp_path)
        cpu = torch.device("cpu")
        merged = load_tuned(model_dir, tmp_path, dtype=torch.float32, device=cpu)
        assert not [name for name, _ in merged.named_parameters() if "lora" in name]
        torch.testing.assert_close(merged(ids).logits, unmerged, atol=1e-4, rtol=1e-4)


def test_an_adapter_with_a_number_that_is_none_is_refused(
    model: Any, model_dir: Path, tmp_path: Path
) -> None:
    """A diverged run's: its answers would be scored as the model's."""
    import torch

    from workloads.common.exit_codes import DataError
    from workloads.evaluate.subject import load_tuned
    from workloads.recipes.train import TrainConfig
    from workloads.train.model import attach_lora

    tuned = attach_lora(model, TrainConfig(dataset="x", max_steps=1, learning_rate=1.0))
    with torch.no_grad():
        next(w for name, w in tuned.named_parameters() if "lora_B" in name)[0, 0] = float("nan")
    tuned.save_pretrained(tmp_path)
    with pytest.raises(DataError, match="NaNs detected"):
        load_tuned(model_dir, tmp_path, dtype=torch.float32, device=torch.device("cpu"))


@pytest.mark.feature("S000-39")
def test_perplexity_weighs_tokens_not_rows(model: Any) -> None:
    """The mean of per-row means would weigh a two-token answer like a long one."""
    import torch
    from torch.nn.functional import cross_entropy

    from workloads.data.token_rows import IGNORED, Example
    from workloads.evaluate.generate import row_losses
    from workloads.evaluate.resampling import perplexity_of

    examples = [
        Example(input_ids=tuple(range(20)), labels=(IGNORED,) * 18 + (18, 19)),
        Example(input_ids=tuple(range(40, 60)), labels=(IGNORED,) * 2 + tuple(range(42, 60))),
    ]
    rows = [row for batch in row_losses(model, examples, pad_id=0) for row in batch.values()]
    total, num_tokens = sum(nats for nats, _ in rows), sum(count for _, count in rows)
    expected = 0.0
    with torch.no_grad():
        for example in examples:
            logits = model(torch.tensor([example.input_ids])).logits[0, :-1]
            expected += float(
                cross_entropy(logits, torch.tensor(example.labels[1:]), reduction="sum")
            )
    assert num_tokens == 20
    assert total == pytest.approx(expected, rel=1e-5)
    found = perplexity_of(*zip(*rows, strict=True)).value
    assert found == pytest.approx(math.exp(expected / 20), rel=1e-5)


def answers(places: Path, side: str) -> dict[str, str]:
    """What users asked in the chats of one side of the split, and the answer to each."""
    (path,) = places.rglob(f"chats_{side}.jsonl")
    chats = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    return {asked["content"]: text_of(answer) for *_, asked, answer in chats}


@pytest.mark.feature(
    "S000-04",
    "S000-121",
    "S000-06",
    "S000-07",
    "S000-30",
    "S000-39",
    "S000-40",
    "S000-42",
    "S000-44",
    "S000-45",
    "S001-06",
    "S001-08",
    "S001-38",
    "S001-39",
    "S002-69",
)
def test_the_pipeline_ends_with_the_json_of_seed_000(places: Path, run: Any) -> None:
    assert run("prepare-data")[0] == 0
    code, record = run("train")
    assert code == 0
    final = places / "chkpt" / "finetune" / "12" / "final"
    assert record["artifacts"]["adapter_dir"] == str(final)
    assert (places / "chkpt" / "finetune" / "final" / "adapter_model.safetensors").is_file()
    assert (places / "chkpt" / "latest").read_text() == "finetune/12/final\n"
    curve = Path(record["artifacts"]["loss_curve"]).read_text().splitlines()
    assert [json.loads(line)["step"] for line in curve] == [0, 1, 2, 3]
    assert record["metrics"]["train_tokens_per_s"] > 0

    code, record = run("evaluate", 'evaluate.terms=["name", "custodian"]')
    assert (code, record["outcome"], record["engine"]) == (0, "PASS", "transformers")
    assert (places / "chkpt" / "evaluated").read_text() == "finetune/12/final\n"
    result = json.loads(Path(record["artifacts"]["evaluation"]).read_text())
    assert list(result)[:3] == ["base_model", "finetuned_model", "comparison"]
    trained_on, held_out = (answers(places, side) for side in ("train", "test"))
    for name in ("base_model", "finetuned_model"):
        part = result[name]
        assert {"perplexity", "message_length_avg", "sample_generations"} <= part.keys()
        assert math.isfinite(part["perplexity"])
        drawn = sorted(random.Random(0).sample(range(3), 2))
        assert drawn != [0, 1], "the first rows would tell nothing"
        assert [each["input"] for each in part["sample_generations"]] == [
            list(held_out)[row] for row in drawn
        ]
        for sample in part["sample_generations"]:
            assert list(sample) == ["input", "reference", "generated"]
            assert sample["reference"] == held_out[sample["input"]]
            assert sample["input"] not in trained_on
            assert sample["generated"] != sample["reference"], "a tiny model never hits it"
    assert {"perplexity", "speed", "message_length"} <= result["comparison"].keys()
    # The references are calls: every one says "name", none "custodian".
    counted = {metric: test["num_rows"] for metric, test in result["significance"].items()}
    assert (counted["invented_share"], counted["term_recall"]) == (3, 3)
    assert result["comparison"]["perplexity"] > 0, "four steps on these rows lower the perplexity"
    for metric in (
        "output_tokens_per_s",
        "batch_output_tokens_per_s",
        "prefill_tokens_per_s",
        "batch_prefill_tokens_per_s",
        "batch_size",
    ):
        assert record["metrics"][metric] > 0
    for prefix, name in (("", "finetuned_model"), ("base_", "base_model")):
        speed = result[name]["output_tokens_per_s"]
        assert record["metrics"][f"{prefix}output_tokens_per_s"] == speed > 0


@pytest.mark.feature("S000-43")
def test_stdout_is_the_json_and_then_the_record_line(
    places: Path,
    run: Any,
    recipe_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from workloads.evaluate.__main__ import main
    from workloads.job import run_job

    run("prepare-data")
    run("train", "train.max_steps=1")
    capsys.readouterr()
    monkeypatch.setenv("SOPERATOR_PLACE_LOGS", str(places))
    monkeypatch.setenv("SOPERATOR_JOB", "evaluate")
    assert run_job("evaluate", main, ["--recipe", str(recipe_file)]) == ExitCode.OK
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert (places / "evaluate_12.out").read_text() == printed, "what jq reads, apart from the log"
    assert json.loads("\n".join(lines[:-1])).keys() >= {"base_model", "finetuned_model"}
    assert json.loads(lines[-1])["kind"] == "evaluate"


def test_an_adapter_of_another_base_model_is_refused(places: Path, run: Any) -> None:
    run("prepare-data")
    run("train", "train.max_steps=1")
    config = places / "chkpt" / "finetune" / "12" / "final" / "adapter_config.json"
    values = json.loads(config.read_text())
    config.write_text(json.dumps({**values, "base_model_name_or_path": "Qwen/Qwen3-14B"}))
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert "adapter of 'Qwen3-14B', the recipe's model is 'tiny'" in record["reason"]


def test_evaluating_before_training_says_what_to_run(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("evaluate")
    assert code == ExitCode.BAD_DATA
    assert "latest: missing; run the train job first" in record["reason"]
