"""What a run leaves behind: original, final, merged, checkpoints by epoch, summary, gate."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.test_train_parts import scalars_of
from workloads.common.exit_codes import ExitCode
from workloads.common.models import load_tokenizer
from workloads.common.places import Places
from workloads.data.token_rows import read_parquet
from workloads.job import run_job
from workloads.train import measure, strategy
from workloads.train.checkpoint import FolderCheckpoints
from workloads.train.finish import headline
from workloads.train.loop import Stream, Trainer
from workloads.train.run_folder import resolve_adapter


def _that_finds_the_original(train: Callable[[Trainer], Any]) -> Callable[[Trainer], Any]:
    def run(trainer: Trainer) -> Any:
        assert isinstance(trainer.checkpoints, FolderCheckpoints)
        folder = trainer.checkpoints.folder.path
        assert (folder / "original" / "model.safetensors").is_file(), "before the first step"
        return train(trainer)

    return run


@pytest.mark.feature(
    "S000-30",
    "S001-21",
    "S001-22",
    "S001-23",
    "S002-32",
    "S002-36",
    "S002-37",
    "S002-41",
    "S002-55",
    "S002-68",
    "S002-75",
)
def test_a_lora_run_leaves_original_adapter_merged_summary_and_events(
    places: Path, run: Any, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    run("prepare-data")
    said: list[str] = []
    monkeypatch.setattr(strategy, "log", said.append)
    monkeypatch.setattr(Trainer, "run", _that_finds_the_original(Trainer.run))
    code, record = run("train", "train.save_original=true", "train.export_merged=true",
                       "train.lora.dropout=0.05",
                       'train.gate={"max_loss": 99, "min_tokens_per_s_per_gpu": 1}')  # fmt: skip
    assert code == 0, record
    folder = places / "chkpt" / "finetune" / "12"
    for path in model_dir.iterdir():
        original = folder / "original" / path.name
        assert original.read_bytes() == path.read_bytes()
        assert not original.samefile(path), "it outlives the model's place"
    assert not (folder / "final" / "model.safetensors").exists()
    words = load_tokenizer(folder / "final").get_vocab()
    assert words == load_tokenizer(model_dir).get_vocab(), "a server takes it from there"
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    tuned: Any = PeftModel.from_pretrained(base, folder / "final")
    merged = AutoModelForCausalLM.from_pretrained(folder / "merged")
    weights = tuned.state_dict()
    assert all(weights[name].abs().sum() > 0 for name in weights if "lora_B" in name)
    num_base = sum(weight.numel() for weight in merged.parameters())
    num_lora = sum(weight.numel() for name, weight in weights.items() if "lora_" in name)
    assert f"{num_base + num_lora:,} parameters, {num_lora:,} trained" in said[0]
    ids = torch.arange(3, 20)[None]
    torch.testing.assert_close(
        merged(input_ids=ids).logits, tuned(input_ids=ids).logits, rtol=1e-3, atol=1e-3
    )
    results = places / "results" / "12"
    config = json.loads((results / "config.json").read_text())
    assert config["train"]["lora"]["rank"] == 4
    made = json.loads((folder / "final" / "adapter_config.json").read_text())
    assert (made["r"], made["lora_alpha"], made["lora_dropout"]) == (4, 8, 0.05)
    assert set(made["target_modules"]) == {"q_proj", "v_proj"}
    summary = (results / "train_12_summary.txt").read_text()
    for words in ("gate: PASS", "PASS    final/", "NOT RUN tokens/s/GPU", "last_loss"):
        assert words in summary
    assert f"\ntraining time  {record['metrics']['train_time_s']:,.1f} s\n" in summary
    data = places / "data" / "prepared" / "tokens_train.parquet"
    assert record["artifacts"]["data_file"] == str(data), "never the rows of the test"
    assert record["data_hash"] == hashlib.sha256(data.read_bytes()).hexdigest()
    found = scalars_of(results / "tensorboard" / "12")
    steps = [step for step, tag, _ in found if tag == "train/loss"]
    assert steps == [1, 2, 3, 4]
    exported = (results / "metrics.prom").read_text()
    assert record["artifacts"]["metrics"] == str(results / "metrics.prom")
    assert "train_step 4.0\n" in exported
    metrics = record["metrics"]
    for share in ("padding_positions", "checkpoint_time", "data_wait_time", "recompute_flops"):
        assert 0 <= metrics[f"{share}_percent"] <= 100
    assert 0 < metrics["num_useful_tokens"] <= metrics["num_computed_positions"]
    assert 0 < metrics["median_train_step_s"] <= metrics["p99_train_step_s"]
    assert metrics["p99_train_step_s"] < metrics["train_time_s"]


@pytest.mark.feature("S002-41", "S002-42")
def test_models_are_kept_beside_those_that_are_downloaded_and_found_there_by_name(
    places: Path, model_dir: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 002 keeps the original and the trained model in the models' folder."""
    shutil.copytree(model_dir, places / "model" / model_dir.name)
    monkeypatch.setenv("SOPERATOR_PLACE_MODEL", str(places / "model"))
    run("prepare-data")
    options = ("train.keep_in=model", "train.save_original=true", "train.export_merged=true")
    assert run("train", *options, "train.max_steps=2")[0] == 0
    folder = places / "model" / "finetune" / "12"
    made = {path.name for path in folder.iterdir()}
    assert {"original", "checkpoint-2", "final", "merged"} <= made
    assert not (places / "chkpt" / "finetune").exists()
    subject = resolve_adapter(places / "chkpt" / "latest")
    assert subject == folder / "final", "evaluate takes it, or what was trained before, from there"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    code, record = run("train", *options, "train.max_steps=3", "train.resume=auto")
    assert code == 0, record
    saved = {path.name for path in (folder.parent / "13").glob("checkpoint-*")}
    assert saved == {"checkpoint-3"}, "it went on after the second step"
    assert Places().model_dir("finetune/12/merged") == folder / "merged", "as a recipe names it"


@pytest.mark.feature("S002-36")
def test_a_run_that_goes_on_keeps_the_original_of_its_beginning(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has in memory by then is trained."""
    run("prepare-data")
    options = ("train.save_original=true", "train.max_steps=2", "train.resume=requeue")
    assert run("train", *options)[0] == 0
    original = places / "chkpt" / "finetune" / "12" / "original"
    (original / "of-the-first-start").touch()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, record = run("train", *options)
    assert code == 0, record
    assert record["artifacts"]["original_dir"] == str(original)
    assert (original / "of-the-first-start").is_file()


@pytest.mark.feature("S001-45", "S001-46")
def test_events_and_summary_lie_where_all_jobs_have_their_logs(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (places / "logs").mkdir()
    monkeypatch.setenv("SOPERATOR_PLACE_LOGS", str(places / "logs"))
    closed: list[measure.Events] = []
    close = measure.Events.close
    monkeypatch.setattr(measure.Events, "close", lambda own: (closed.append(own), close(own)))
    run("prepare-data")
    code, record = run("train", "train.max_steps=1")
    assert code == 0, record
    assert len(closed) == 1, "a job ends without destructors: what is not written then is lost"
    found = scalars_of(places / "logs" / "tensorboard" / "12")
    assert [step for step, tag, _ in found if tag == "train/loss"] == [1]
    summary = (places / "logs" / "train_12_summary.txt").read_text()
    assert summary == (places / "results" / "12" / "train_12_summary.txt").read_text()
    said = dict(line.split(maxsplit=1) for line in summary.splitlines() if line)
    assert [said[name] for name in ("job", "model", "ranks")] == ["12", record["model"], "1 (ddp)"]
    assert said.keys() >= {*record["metrics"], *record["artifacts"]} - {"summary"}
    assert float(said["last_loss"]) == pytest.approx(record["metrics"]["last_loss"], abs=1e-4)
    assert said["adapter_dir"] == record["artifacts"]["adapter_dir"]


@pytest.mark.feature("S001-46", "S002-68", "S002-69", "S002-70")
def test_the_summary_leads_with_time_throughput_and_memory() -> None:
    measured = {
        "train_time_s": 90.0,
        "train_tokens_per_s": 4000.0,
        "train_tokens_per_s_per_gpu": 500.0,
        "peak_gpu_memory_gib": 61.0,
    }
    assert headline(measured) == [
        "training time  90.0 s",
        "throughput     4,000.0 tokens/s, 500.0 a rank",
        "GPU memory     61.0 GiB a GPU",
    ]
    assert headline({"train_time_s": 90.0})[1:] == [
        "throughput     NOT RUN: fewer than two steps were trained",
        "GPU memory     NOT RUN: this job had no GPU",
    ]


@pytest.mark.feature("S002-69")
def test_throughput_is_of_tokens_without_padding_after_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first step pays for warm-up; padding is computed on, and nobody learns from it."""
    ends = iter([10.0, 12.0, 16.0])
    monkeypatch.setattr(
        measure, "time", SimpleNamespace(perf_counter=lambda: next(ends), time=float)
    )
    ledger = measure.Ledger()
    for step in range(3):
        ledger.add(
            measure.StepResult(
                step=step,
                loss=1.0,
                grad_norm=1.0,
                learning_rate=0.1,
                num_tokens=300,
                num_positions=400,
                num_label_tokens=100,
            )
        )
    # A checkpoint is a part of the time that training takes.
    ledger.seconds["checkpoint"].append(1.0)
    found = ledger.rates(world_size=2, flops_per_token=1.0, device_name="cpu")
    assert found["train_tokens_per_s"] == 2 * 300 / 6
    assert found["train_tokens_per_s_per_gpu"] == 50
    assert found["padding_percent"] == 25


@pytest.mark.feature("S000-12", "S002-66")
def test_a_record_names_the_stored_config_that_the_run_had(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare-data")
    code, record = run("train", "train.max_steps=1")
    kept = Path(record["artifacts"]["recipe"])
    assert code == 0
    assert json.loads(kept.read_text())["train"]["max_steps"] == 1
    digest = hashlib.sha256(kept.read_bytes()).hexdigest()[:16]
    assert "stored_recipe" not in record["artifacts"]
    monkeypatch.setenv("SOPERATOR_RUN_CONFIG", f"configs/runs/tiny/{digest}.json")
    record = run("train", "train.max_steps=1")[1]
    assert record["artifacts"]["stored_recipe"] == f"s3://configs/runs/tiny/{digest}.json"
    record = run("train", "train.max_steps=2")[1]
    assert "stored_recipe" not in record["artifacts"], "it holds another number of steps"


@pytest.mark.feature("S002-82")
def test_the_rows_of_the_next_step_are_put_together_while_one_computes(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that began with reading its rows would leave the GPU idle meanwhile."""
    deal, compute = Stream.micro_batches, Trainer._step
    dealt: list[int] = []
    is_ahead: list[bool] = []

    def micro_batches(stream: Stream, position: int, **sizes: int) -> list[list[Any]]:
        dealt.append(position)
        return deal(stream, position, **sizes)

    def step(trainer: Trainer, batches: list[Any]) -> Any:
        position, until_s = trainer.state.progress.position, time.monotonic() + 10
        while max(dealt) <= position and time.monotonic() < until_s:
            time.sleep(0.01)  # another thread reads
        is_ahead.append(max(dealt) > position)
        return compute(trainer, batches)

    run("prepare-data")
    monkeypatch.setattr(Stream, "micro_batches", micro_batches)
    monkeypatch.setattr(Trainer, "_step", step)
    assert run("train", "train.max_steps=2")[0] == 0
    assert is_ahead == [True, True]


@pytest.mark.feature("S001-40")
def test_a_run_that_misses_its_gate_fails_and_keeps_its_model(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", 'train.gate={"max_loss": 0.001}', "train.max_steps=1")
    assert code == ExitCode.FAILED
    assert "wanted below 0.001; the model is saved" in record["reason"]
    assert (places / "chkpt" / "finetune" / "12" / "final" / "adapter_model.safetensors").is_file()
    assert "gate: FAIL" in (places / "results" / "12" / "train_12_summary.txt").read_text()
    assert not (places / "chkpt" / "latest").exists(), "nobody evaluates or serves it"


@pytest.mark.feature("S001-40")
def test_the_loss_that_a_gate_judges_is_the_last_one_and_not_the_best(
    places: Path, run: Any
) -> None:
    run("prepare-data")
    code, record = run("train", 'train.gate={"max_loss": 8}', "train.max_steps=3",
                       "train.learning_rate=1", "train.method=full")  # fmt: skip
    assert code == ExitCode.FAILED, record
    lines = (places / "results" / "12" / "loss_curve.jsonl").read_text().splitlines()
    curve = [json.loads(line)["loss"] for line in lines]
    assert curve[0] < 8 < curve[-1] == record["metrics"]["last_loss"]


@pytest.mark.feature("S002-40", "S003-10")
def test_checkpoints_fall_on_ends_of_epochs(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.max_steps=null", "train.epochs=4", "train.keep_last=9",
                       "train.checkpoint_every_epochs=2", "train.gradient_accumulation=2",
                       "train.checkpoint.keep_best=false")  # fmt: skip
    assert code == 0, record
    num_rows, steps = record["metrics"]["num_rows"], record["metrics"]["num_train_steps"]
    assert steps == -(-4 * num_rows // 2)
    saved = {path.name for path in (places / "chkpt" / "finetune" / "12").glob("checkpoint-*")}
    assert saved == {f"checkpoint-{-(-2 * num_rows // 2)}", f"checkpoint-{steps}"}


@pytest.mark.feature("S003-05", "S003-23")
def test_a_checkpoint_of_slices_falls_on_every_interval_and_on_the_end(
    places: Path, run: Any
) -> None:
    run("prepare-data")
    code, record = run("train", "train.max_steps=7", "train.checkpoint_every=2",
                       "train.keep_last=9", "train.checkpoint.keep_best=false",
                       "train.sequence_length=1600", "train.overlong=drop")  # fmt: skip
    assert code == 0, record
    saved = list((places / "chkpt" / "finetune" / "12").glob("checkpoint-*"))
    assert {path.name for path in saved} == {f"checkpoint-{step}" for step in (2, 4, 6, 7)}
    assert all(list(path.glob("*.distcp")) for path in saved)


@pytest.mark.feature("S001-30", "S002-37")
def test_an_epoch_learns_every_example_also_one_of_just_the_length(places: Path, run: Any) -> None:
    run("prepare-data")
    rows = read_parquet(places / "data" / "prepared" / "tokens_train.parquet")
    options = (f"train.sequence_length={max(rows.lengths)}", "train.overlong=refuse")
    code, record = run("train", "train.max_steps=null", "train.epochs=1", *options)
    assert code == 0, record
    assert record["metrics"]["num_useful_tokens"] == rows.num_tokens


def test_examples_that_are_too_long_are_cut_when_asked_and_counted(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.sequence_length=900", "train.overlong=cut",
                       "train.max_steps=1")  # fmt: skip
    assert code == 0, record
    assert record["metrics"]["num_dropped_examples"] > 0


def test_padding_never_carries_a_loss(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published run put 85 % of its loss on padding; a padded row here loses as it does alone."""
    run("prepare-data")
    options = ("train.max_steps=1", "train.packing=false", "train.overlong=drop")
    rows = []
    for number, size in enumerate((1, 4)):
        monkeypatch.setenv("SLURM_JOB_ID", str(20 + number))
        code, record = run("train", *options, f"train.micro_batch_size={size}",
                           f"train.gradient_accumulation={4 // size}")  # fmt: skip
        assert code == 0, record
        rows.append((record["metrics"]["last_loss"], record["metrics"]["num_computed_positions"]))
    (alone, few), (together, many) = rows
    assert many > few, "four rows in one batch are padded"
    assert abs(alone - together) < 1e-5


def run_bert(
    capsys: pytest.CaptureFixture[str], *sets: str, recipe: str = "bert_full_1xcpu"
) -> tuple[int, dict[str, Any]]:
    """Returns exit code and record of the tiny classifier, or of another recipe."""
    from workloads.train.inputs import train as main

    capsys.readouterr()
    code = run_job("train", main, [f"--recipe={recipe}", *(f"--set={each}" for each in sets)])
    return int(code), json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.feature("S003-10", "S003-23")
def test_checkpoints_fall_on_every_nth_step_and_on_the_last(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("train.max_steps=7", "train.checkpoint_every=2", "train.keep_last=9")
    both = (*options, "train.gate=null", 'train.checkpoint={"elastic_every": 3}')
    code, record = run_bert(capsys, *both)
    assert code == 0, record
    saved = {path.name for path in (places / "chkpt" / "finetune" / "12").glob("*checkpoint-*")}
    # On a step of both intervals the elastic one, which any world size reads.
    sharded = {f"checkpoint-{step}" for step in (2, 4, 7)}
    assert saved == sharded | {f"elastic-checkpoint-{step}" for step in (3, 6)}
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    more = ("train.max_steps=12", *options[1:], "train.gate=null", "train.resume=auto")
    code, record = run_bert(capsys, *more)
    assert code == 0, record
    saved = {path.name for path in (places / "chkpt" / "finetune" / "13").glob("*checkpoint-*")}
    assert saved == {f"checkpoint-{step}" for step in (8, 10, 12)}, "not from where it went on"


def test_a_run_that_failed_its_gate_fails_it_again_when_it_is_started_again(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to train then: the loss is that of the last checkpoint."""
    options = ("train.max_steps=4", 'train.gate={"max_loss": 0.001}')
    code, first = run_bert(capsys, *options)
    assert code == ExitCode.FAILED
    assert not (places / "chkpt" / "latest").exists(), "what failed is not the one to serve"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, second = run_bert(capsys, *options)
    assert code == ExitCode.FAILED, second["reason"]
    assert second["metrics"]["last_loss"] == pytest.approx(first["metrics"]["last_loss"])
    code, _ = run_bert(capsys, "train.max_steps=4", 'train.gate={"max_loss": 99}')
    assert code == 0
    assert (places / "chkpt" / "latest").read_text().strip() == "finetune/12/final"


def test_a_disk_that_is_full_for_a_while_costs_lines_and_not_the_run(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = measure.LossCurve.append

    def without_room(curve: measure.LossCurve, figures: dict[str, Any]) -> None:
        if figures["step"] in (1, 2):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(curve, figures)

    monkeypatch.setattr(measure.LossCurve, "append", without_room)
    code, record = run_bert(capsys, "train.max_steps=5", "train.gate=null")
    assert (code, record["outcome"]) == (0, "PASS")
    curve = (places / "results" / "12" / "loss_curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in curve] == [0, 3, 4]


def test_a_record_that_cannot_be_kept_is_printed_all_the_same(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("workloads.common.record.atomic.write_text", full)
    code, record = run_bert(capsys, "train.max_steps=2", "train.dataset=missing")
    assert code == ExitCode.NOT_SAVED, "its files cannot be written either"
    assert record["outcome"] == "FAIL"


@pytest.mark.feature("S000-04")
def test_weights_move_as_the_schedule_says(
    places: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published trainer computed a learning rate for its log alone."""
    import torch
    from safetensors.torch import load_file

    weights = []
    for job, warmup in (("12", 1), ("13", 1_000_000)):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        code, record = run_bert(
            capsys, "train.max_steps=1", f"train.warmup_steps={warmup}", "train.gate=null",
            "train.save_original=true", "train.weight_decay=0",
        )  # fmt: skip
        assert code == 0, record
        folder = places / "chkpt" / "finetune" / job
        before, after = (load_file(folder / name / "model.safetensors")
                         for name in ("original", "final"))  # fmt: skip
        weights.append(max((after[name] - before[name]).abs().max() for name in before))
    assert weights[0] > 1e-4
    assert weights[1] < torch.tensor(1e-3) * weights[0]
