"""Validation while training: the best by held-out rows, an early stop, nothing else changes."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nightly import at_night
from tests.workloads.ranks import Ranks
from tests.workloads.test_train import adapter, launch
from tests.workloads.test_train_outputs import run_bert
from tests.workloads.test_train_parts import scalars_of
from workloads.common.exit_codes import ExitCode
from workloads.train import finish, measure
from workloads.train.loop import Validated
from workloads.train.model import AssistantLoss


def curve(places: Path, job_id: str = "12", kind: str = "loss") -> dict[int, float]:
    """Returns a run's losses by step from 1; `kind`: those of the steps or `eval_loss`."""
    lines = (places / "results" / job_id / "loss_curve.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return {line["step"] + 1: line[kind] for line in found if kind in line}


def kept(places: Path, job_id: str = "12") -> set[str]:
    """Returns the checkpoints that a run left."""
    return {path.name for path in (places / "chkpt" / "finetune" / job_id).glob("*checkpoint-*")}


FLAT = ("train.max_steps=12", "train.learning_rate=1e-5", "train.checkpoint_every=2",
        "train.keep_last=1", "train.schedule=constant")  # fmt: skip
"""A run that learns next to nothing: losses of its steps differ by their batches."""


@pytest.mark.feature("S002-64", "S003-10")
def test_a_lucky_batch_makes_no_checkpoint_the_best(places: Path, run: Any) -> None:
    """Kept was the step whose rows were easy: here the one with the lowest of the losses."""
    run("prepare-data")
    assert run("train", *FLAT)[0] == 0
    assert kept(places) == {"checkpoint-12"}, "nothing was validated, so nothing is the best"


UNEVEN = ("train.max_steps=6", "train.learning_rate=0.1", "train.schedule=constant",
          "train.checkpoint_every=0", "train.keep_last=1", "train.sequence_length=1600",
          "train.overlong=drop",
          'train.lora={"rank": 32, "alpha": 8, "dropout": 0.1}')  # fmt: skip
"""A run whose held-out loss falls to step 5, by 0.03 there, and rises by 0.15 then."""


@pytest.mark.feature("S002-64")
def test_the_best_by_held_out_rows_is_kept_and_becomes_final(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare-data")
    code, record = run("train", *UNEVEN, "train.eval.every=1", 'train.gate={"max_loss": 99}')
    assert code == 0, record
    found, metrics = curve(places, kind="eval_loss"), record["metrics"]
    assert sorted(found) == [*range(1, 7)]
    best = min(found, key=lambda step: found[step])
    assert best < 6
    assert kept(places) == {f"checkpoint-{best}", "checkpoint-6"}
    assert (metrics["best_eval_step"], metrics["final_step"]) == (best, best)
    assert metrics["eval_loss"] == metrics["best_eval_loss"] == found[best]
    assert metrics["last_loss"] == curve(places)[6]
    assert 0 < metrics["eval_time_percent"] < 100
    results = places / "results" / "12"
    assert "PASS    eval loss: " in (results / "train_12_summary.txt").read_text()
    assert f"train_eval_loss {found[6]}" in (results / "metrics.prom").read_text()
    shown = scalars_of(results / "tensorboard" / "12")
    written = {step: value for step, tag, value in shown if tag == "eval/loss"}
    assert written == pytest.approx(found)

    monkeypatch.setenv("SLURM_JOB_ID", "13")
    assert run("train", *UNEVEN, "train.eval.every=3", f"train.max_steps={best}")[0] == 0
    assert sorted(curve(places, "13", "eval_loss")) == [3, best]
    first, second = adapter(places), adapter(places, "13")
    assert all(torch.equal(first[name], second[name]) for name in first), "final/ is the best"


def test_validation_changes_no_loss_of_training_to_the_bit(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout draws the same numbers, and is off for the held-out rows."""
    run("prepare-data")
    assert run("train", *UNEVEN)[0] == 0
    losses = []
    for job_id, micro_batch_size in (("13", 1), ("14", 1), ("15", 2)):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        more = (f"train.micro_batch_size={micro_batch_size}", "train.checkpoint.keep_best=false")
        code, record = run("train", *UNEVEN, "train.eval.every=1", *more)
        assert code == 0, record
        losses.append(curve(places, job_id, "eval_loss"))
    assert curve(places, "13") == curve(places)
    assert losses[0] == losses[1]
    assert losses[2][1] == pytest.approx(losses[0][1], rel=0.2)
    whole, last = adapter(places), adapter(places, "13")
    assert all(torch.equal(whole[name], last[name]) for name in whole), (
        "without keep_best: the last"
    )


@pytest.mark.parametrize("more", [("train.strategy=fsdp",), at_night(("train.method=full",))])
def test_two_ranks_find_the_held_out_loss_of_one(
    places: Path, run: Any, recipe_file: Path, more: tuple[str, ...]
) -> None:
    """Seven rows over two ranks of two: one rank runs out of rows; FSDP2 shards again after."""
    run("prepare-data")
    options = ("train.max_steps=4", "train.sequence_length=1600", "train.overlong=drop",
               "train.packing=false", "train.eval.every=2", "train.eval.rows=7")  # fmt: skip
    one = (*options, *(each for each in more if "fsdp" not in each))
    assert run("train", *one, "train.gradient_accumulation=2")[0] == 0
    result = launch(places, recipe_file, "13", *options, *more)
    assert result.returncode == 0, result.stderr
    single, both = (curve(places, job_id, "eval_loss") for job_id in ("12", "13"))
    assert both == pytest.approx(single, rel=1e-4)
    assert curve(places, "13") == pytest.approx(curve(places), rel=1e-4)


def test_no_better_validation_ends_the_run_early_and_well(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare-data")
    options = (*UNEVEN, "train.max_steps=30", "train.eval.every=1")
    code, record = run("train", *options, "train.eval.patience=2")
    assert (code, record["outcome"]) == (0, "PASS")
    found, metrics = curve(places, kind="eval_loss"), record["metrics"]
    best = metrics["best_eval_step"]
    assert best == min(found, key=lambda step: found[step])
    assert max(found) == metrics["num_train_steps"] == best + 2 < 30
    assert record["reason"] == (
        f"stopped early after step {best + 2} of 30: 2 validations without a lower loss than "
        f"{found[best]:.4f} of step {best}"
    )
    # Started again it stays ended; with more patience it goes on.
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, again = run("train", *options, "train.eval.patience=2")
    assert (code, again["reason"]) == (0, record["reason"])
    assert again["metrics"]["final_step"] == best
    code, more = run("train", *options, "train.eval.patience=3", "train.max_steps=12")
    assert code == 0
    assert more["metrics"]["num_train_steps"] > best + 2


@pytest.mark.parametrize("stopped_in", [at_night("step"), "validation"])
def test_a_stopped_run_validates_and_decides_as_one_that_was_not(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch, stopped_in: str
) -> None:
    run("prepare-data")
    options = (*UNEVEN, "train.max_steps=8", "train.eval.every=1", "train.eval.patience=1")
    code, whole = run("train", *options)
    assert code == 0, whole
    assert whole["reason"].startswith("stopped early")

    monkeypatch.setenv("SLURM_JOB_ID", "13")
    append = measure.LossCurve.append
    # The signal is seen in step 4, or in the validation after it, which then does not count.
    kind, step = ("eval_loss", 2) if stopped_in == "step" else ("loss", 3)

    def stop(curve: measure.LossCurve, figures: dict[str, Any]) -> None:
        append(curve, figures)
        if kind in figures and figures["step"] == step:
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(measure.LossCurve, "append", stop)
    code, record = run("train", *options)
    assert code == ExitCode.PREEMPTED
    assert "after step 4 of 8" in record["reason"]
    assert sorted(curve(places, "13", "eval_loss")) == [1, 2, 3]
    monkeypatch.setattr(measure.LossCurve, "append", append)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, record = run("train", *options)
    assert code == 0, record
    for each in ("loss", "eval_loss"):
        assert curve(places, "13", each) == curve(places, "12", each)
    for name in ("eval_loss", "best_eval_loss", "best_eval_step", "final_step", "num_train_steps"):
        assert record["metrics"][name] == whole["metrics"][name]
    assert record["reason"] == whole["reason"]
    assert kept(places, "13") >= kept(places, "12")


@pytest.mark.parametrize(
    ("kind", "step"), [at_night("loss", 4), ("eval_loss", 4), at_night("eval_loss", 5)]
)
def test_a_killed_run_goes_on_and_decides_as_one_that_was_not(
    places: Path, recipe_file: Path, run: Any, monkeypatch: pytest.MonkeyPatch, kind: str, step: int
) -> None:
    """SIGKILL once a line of the curve is there: in a validation, before and after a checkpoint."""
    run("prepare-data")
    options = (*UNEVEN, "train.max_steps=8", "train.eval.every=1", "train.eval.patience=1")
    options = (*options, "train.checkpoint_every=2", "train.keep_last=2")
    code, whole = run("train", *options)
    assert code == 0, whole

    monkeypatch.setenv("SLURM_JOB_ID", "13")
    sets = [part for each in options for part in ("--set", each)]
    with Ranks("-m", "workloads.train", "--recipe", str(recipe_file), *sets) as ranks:
        (process,) = ranks.processes
        lines = places / "results" / "13" / "loss_curve.jsonl"
        awaited = re.compile(rf'^(?=.*"step": {step - 1}\b)(?=.*"{kind}": )', re.MULTILINE)
        while not (lines.exists() and awaited.search(lines.read_text())):
            assert process.is_alive(), "it ended before it was killed"
            time.sleep(0.005)
        process.kill()
        assert ranks.wait().returncode == 128 + signal.SIGKILL
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    code, record = run("train", *options)
    assert code == 0, record
    for each in ("loss", "eval_loss"):
        assert curve(places, "13", each) == curve(places, "12", each)
    for name in ("eval_loss", "best_eval_loss", "best_eval_step", "final_step", "num_train_steps"):
        assert record["metrics"][name] == whole["metrics"][name]
    assert record["reason"] == whole["reason"]
    assert kept(places, "13") == kept(places, "12")


def test_the_best_of_the_run_before_becomes_final_of_the_one_that_goes_on(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other settings of validation are no other run; other rows are another best."""
    run("prepare-data")
    code, before = run("train", *UNEVEN, "train.max_steps=5", "train.eval.every=1")
    assert code == 0, before
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    on = (*UNEVEN, "train.resume=auto", "train.eval.every=6")
    code, record = run("train", *on)
    assert code == 0, record
    names = ("best_eval_loss", "best_eval_step", "final_step")
    assert [record["metrics"][n] for n in names] == [before["metrics"][n] for n in names]
    first, second = adapter(places), adapter(places, "13")
    assert all(torch.equal(first[name], second[name]) for name in first)
    monkeypatch.setenv("SLURM_JOB_ID", "14")
    code, record = run("train", *on, "train.max_steps=10", "train.eval.rows=2")
    assert code == 0, record
    assert record["metrics"]["final_step"] == 10


@pytest.mark.parametrize("wrong", ["missing", "empty", "long"])
def test_a_data_set_without_held_out_rows_is_refused_before_training(
    places: Path, run: Any, wrong: str
) -> None:
    run("prepare-data")
    path = places / "data" / "prepared" / "tokens_test.parquet"
    if wrong == "missing":
        path.unlink()
    if wrong == "empty":
        from workloads.data.token_rows import write_parquet

        write_parquet(path, [])
    length = 100 if wrong == "long" else 2048
    code, record = run("train", f"train.sequence_length={length}", "train.overlong=drop",
                       "train.eval.every=2")  # fmt: skip
    assert code == ExitCode.BAD_DATA
    if wrong != "long":
        assert record["reason"].startswith(f"train.eval: needs held-out rows: {path}: ")
        assert record["reason"].endswith(
            "prepare the data with data.test_ratio, or set train.eval=null"
        )
    assert not (places / "chkpt" / "finetune").exists()


@pytest.mark.parametrize("recipe", ["bert", "t5", "vit"])
def test_a_task_that_makes_its_rows_makes_held_out_ones_too(
    places: Path, capsys: pytest.CaptureFixture[str], recipe: str
) -> None:
    code, record = run_bert(
        capsys, "train.max_steps=6", "train.gate=null", "train.eval.every_epochs=1",
        recipe=f"{recipe}_full_1xcpu",
    )  # fmt: skip
    assert code == 0, record
    assert sorted(curve(places, kind="eval_loss")) == [4, 6], "64 rows, 16 a step, and the end"
    assert math.isfinite(record["metrics"]["eval_loss"])


def test_held_out_classes_that_nobody_learns_are_refused(places: Path) -> None:
    import numpy as np

    from workloads.common.exit_codes import DataError
    from workloads.recipes.train import EvalConfig, TrainConfig
    from workloads.train.tasks import SmallTask

    for part, labels in (("train", [0, 1]), ("test", [0, 2])):
        pixels = np.zeros((2, 3, 8, 8), dtype=np.float32)
        np.savez(places / f"images_{part}.npz", pixel_values=pixels, labels=np.array(labels))
    config = TrainConfig(dataset="x", task="image_classification", method="full", max_steps=1,
                         learning_rate=0.1, eval=EvalConfig(every=1))  # fmt: skip
    with pytest.raises(DataError, match=r"test.npz: holds class 2, the training rows 0 to 1; "):
        SmallTask(config, model="generated/vit", model_dir=None, dataset=places)


def test_the_best_is_the_first_with_the_lowest_loss() -> None:
    found = Validated()
    for step, loss in ((1, 3.0), (2, 2.0), (3, 2.0), (4, 2.5)):
        found = found.after(step, loss)
    assert (found.best_step, found.best_loss, found.num_worse) == (2, 2.0, 2)
    assert found.after(5, 1.0).num_worse == 0


def test_a_gate_judges_held_out_rows_where_there_are_any(tmp_path: Path) -> None:
    from workloads.recipes.train import GateConfig

    def outcome(**metrics: float) -> str:
        found = finish.judge(GateConfig(max_loss=1), final=tmp_path, metrics=metrics, is_gpu=True)
        return next(each.outcome for each in found if each.name.endswith("loss"))

    assert outcome(last_loss=0.5) == "PASS"
    assert outcome(last_loss=0.5, eval_loss=1.5) == "FAIL"


def test_held_out_rows_without_a_finite_loss_are_named_and_not_a_step(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason spoke of the loss and the gradient norm of a train step."""
    forward = AssistantLoss.forward

    def infinite_when_held_out(self: Any, *args: Any) -> Any:
        loss = forward(self, *args)
        return loss if self.training else loss / 0

    run("prepare-data")
    monkeypatch.setattr(AssistantLoss, "forward", infinite_when_held_out)
    code, record = run("train", "train.max_steps=2", "train.eval.every=2")
    assert code == ExitCode.NON_FINITE
    assert record["reason"].startswith("held-out rows after step 2: loss inf; lower")
