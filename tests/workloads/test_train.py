"""Numerics of training: token weights, ranks, optimizer, resume, stop signals, exit codes."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.workloads.ranks import REPOSITORY, run_ranks
from workloads.common.exit_codes import ExitCode
from workloads.data.token_rows import pack
from workloads.recipes.train import TrainConfig
from workloads.train import measure
from workloads.train.loop import Stream, Trainer, learning_rate_factor
from workloads.train.strategy import (
    Strategy,
    autocast,
    build_optimizer,
    spread_fsdp,
)


def adapter(places: Path, job_id: str = "12") -> dict[str, torch.Tensor]:
    """Returns the final adapter of a run."""
    from safetensors.torch import load_file

    return load_file(places / "chkpt" / "finetune" / job_id / "final" / "adapter_model.safetensors")


def losses(places: Path, job_id: str = "12", *, name: str = "loss") -> list[float]:
    """Returns the loss curve of a run, or that of another figure."""
    lines = (places / "results" / job_id / "loss_curve.jsonl").read_text().splitlines()
    return [json.loads(line)[name] for line in lines]


def launch(
    places: Path, recipe: Path, job_id: str, *overrides: str, num_ranks: int = 2
) -> subprocess.CompletedProcess:
    """Runs the train job on several ranks."""
    sets = (part for override in overrides for part in ("--set", override))
    return run_ranks(
        *("-m", "workloads.train", "--recipe", str(recipe), *sets),
        num_ranks=num_ranks,
        environment={"SLURM_JOB_ID": job_id, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.feature(
    "S000-04",
    "S000-05",
    "S000-35",
    "S000-36",
    "S001-06",
    "S001-26",
    "S001-27",
    "S002-02",
    "S002-37",
    "S002-38",
    "S004-26",
)
def test_two_ranks_give_the_losses_and_weights_of_one(
    places: Path, run: Any, recipe_file: Path
) -> None:
    """Rows hold different numbers of label tokens: averaging per-rank means would differ here."""
    run("prepare-data")
    small = ("train.sequence_length=1600", "train.overlong=drop", "train.max_steps=3")
    assert run("train", *small, "train.gradient_accumulation=4")[0] == 0
    result = launch(places, recipe_file, "13", *small, "train.gradient_accumulation=2")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout.splitlines()[-1])
    assert (record["world_size"], record["outcome"]) == (2, "PASS")
    assert losses(places, "13") == pytest.approx(losses(places, "12"), rel=1e-5)
    # Adam gives the same weights for a gradient of any scale, so they do not tell it.
    norms = [losses(places, job_id, name="grad_norm") for job_id in ("12", "13")]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)
    one, two = adapter(places, "12"), adapter(places, "13")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)


@pytest.mark.feature("S001-38", "S003-49")
def test_the_launcher_keeps_the_exit_code_that_torchrun_hides(
    places: Path, run: Any, recipe_file: Path
) -> None:
    result = subprocess.run(
        [
            *(sys.executable, "-m", "workloads.common.launch", "--nnodes=1", "--nproc-per-node=2"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            *("-m", "workloads.train", "--recipe", str(recipe_file)),
            *("--set", "train.dataset=missing"),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "SLURM_JOB_ID": "13", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ExitCode.BAD_DATA, result.stderr
    record = json.loads((places / "results" / "13" / "run_record.json").read_text())
    assert record["outcome"] == "FAIL"
    assert "data 'missing' was not found" in record["reason"]


@pytest.mark.feature("S000-12", "S001-84", "S002-82", "S003-11")
def test_a_stopped_run_resumes_to_the_bit(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published trainer restarted at step 0 with a new warm-up after every preemption."""
    run("prepare-data")
    options = ("train.max_steps=6", "train.lora.dropout=0.1", "train.warmup_steps=2")
    assert run("train", *options)[0] == 0
    whole, whole_losses = adapter(places), losses(places)

    monkeypatch.setenv("SLURM_JOB_ID", "13")
    append = measure.LossCurve.append

    def stop_in_step_3(curve: measure.LossCurve, figures: dict[str, Any]) -> None:
        append(curve, figures)
        if figures["step"] == 1:
            os.kill(os.getpid(), signal.SIGUSR1)

    monkeypatch.setattr(measure.LossCurve, "append", stop_in_step_3)
    code, record = run("train", *options, "train.checkpoint_every=0")
    assert code == ExitCode.PREEMPTED
    assert "after step 3 of 6" in record["reason"]
    assert record["metrics"]["num_useful_tokens"] > 0
    assert 0 < record["metrics"]["checkpoint_time_percent"] < 100
    assert not (places / "chkpt" / "finetune" / "13" / "final").exists()

    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run("train", *options)[0] == 0
    assert losses(places, "13") == whole_losses
    resumed = adapter(places, "13")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.feature("S000-12")
def test_a_seed_of_the_recipe_is_an_order_of_rows(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New adapters add nothing, so that a first loss is that of the row that comes first."""
    run("prepare-data")
    options = ("train.max_steps=1", "train.packing=false", "train.micro_batch_size=1")
    options += ("train.gradient_accumulation=1",)
    firsts: list[float] = []
    for job_id, seed in (("12", 5), ("13", 5), ("14", 6)):
        monkeypatch.setenv("SLURM_JOB_ID", job_id)
        assert run("train", *options, f"train.seed={seed}")[0] == 0
        firsts += losses(places, job_id)
    assert firsts[0] == firsts[1] != firsts[2]


@pytest.mark.feature("S003-05", "S003-22", "S003-25")
def test_a_run_of_three_ranks_resumes_to_the_bit(places: Path, run: Any, recipe_file: Path) -> None:
    """DDP reorders its gradients after a first backward; sums of three are then rounded anew."""
    run("prepare-data")
    options = ("train.method=full", "train.gradient_accumulation=1", "train.checkpoint_every=3")
    options += ("train.max_steps=6", "train.sequence_length=1600", "train.overlong=drop")
    first = launch(places, recipe_file, "12", *options, num_ranks=3)
    assert first.returncode == 0, first.stderr
    middle = places / "chkpt" / "finetune" / "12" / "checkpoint-3"
    slices = {f"__{rank}_0.distcp" for rank in range(3)}
    files = {path.name for path in middle.iterdir()} - {"_SUCCESS"}
    assert slices < files == set(json.loads((middle / "_SUCCESS").read_text())["files"])
    resume = f"train.resume={middle}"
    second = launch(places, recipe_file, "13", *options, resume, num_ranks=3)
    assert second.returncode == 0, second.stderr
    assert losses(places, "13") == losses(places, "12")[3:]
    whole, resumed = (
        (places / "chkpt" / "finetune" / job_id / "final" / "model.safetensors").read_bytes()
        for job_id in ("12", "13")
    )
    assert whole == resumed


def test_a_new_job_starts_anew_and_resume_auto_continues_the_last_one(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("prepare-data")
    assert run("train", "train.max_steps=2")[0] == 0
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    assert run("train", "train.max_steps=2", "train.resume=auto")[0] == 0
    assert losses(places, "13") == [], "all steps were already done"
    first, second = adapter(places, "12"), adapter(places, "13")
    assert all(torch.equal(first[name], second[name]) for name in first)
    monkeypatch.setenv("SLURM_JOB_ID", "14")
    assert run("train", "train.max_steps=2")[0] == 0
    assert len(losses(places, "14")) == 2


def test_a_finished_run_is_prolonged_and_says_its_schedule(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.train import finish

    said: list[str] = []
    monkeypatch.setattr(finish, "log", lambda text, **_: said.append(text))
    run("prepare-data")
    assert run("train", "train.max_steps=2")[0] == 0
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    again = ("train.resume=auto", "train.schedule=linear", "train.warmup_steps=3")
    code, record = run("train", "train.max_steps=4", *again)
    assert (code, record["metrics"]["num_train_steps"]) == (0, 4)
    schedule = "goes on after step 2 of 4 with schedule linear over all 4, from"
    assert [each.startswith(schedule) for each in said].count(True) == 1
    lines = (places / "results" / "13" / "loss_curve.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]
    monkeypatch.setenv("SLURM_JOB_ID", "14")
    code, record = run("train", "train.max_steps=3", "train.resume=auto")
    assert code == ExitCode.BAD_CONFIG
    assert "train.max_steps: got 3, but" in record["reason"]


def test_a_run_that_is_prolonged_by_epochs_trains_each_row_once_an_epoch(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last step of an epoch may be short: the next epoch begins at its first row."""
    from workloads.train.loop import Stream

    run("prepare-data")
    asked: list[tuple[int, list[int]]] = []
    rows = Stream.rows

    def seen(self: Stream, start: int, count: int) -> list[Any]:
        found = rows(self, start, count)
        asked.append((start, [id(row) for row in found]))
        return found

    monkeypatch.setattr(Stream, "rows", seen)
    settings = ("train.packing=false", "train.micro_batch_size=4", "train.max_steps=null")
    assert run("train", *settings, "train.epochs=1")[0] == 0
    first = {start: len(found) for start, found in asked if found}
    size = sum(first.values())
    assert size % 4, "the last step is short"
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    asked.clear()
    assert run("train", *settings, "train.epochs=2", "train.resume=auto")[0] == 0
    second = {start: len(found) for start, found in asked if found}
    assert min(second) == size
    assert sum(second.values()) == size


def test_a_job_id_that_comes_again_does_not_touch_the_earlier_run(places: Path, run: Any) -> None:
    """Slurm counts from 1 again on a new cluster, while the checkpoints live on."""
    run("prepare-data")
    assert run("train", "train.max_steps=2")[0] == 0
    before = (places / "chkpt" / "finetune" / "12" / "final" / "adapter_model.safetensors").stat()
    again = ("train.max_steps=2", "train.seed=5", "train.save_original=true")
    code, record = run("train", *again)
    assert code == 0
    assert record["artifacts"]["adapter_dir"].endswith("finetune/12-2/final")
    assert record["artifacts"]["original_dir"].endswith("finetune/12-2/original")
    after = (places / "chkpt" / "finetune" / "12" / "final" / "adapter_model.safetensors").stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)
    assert (places / "chkpt" / "latest").read_text() == "finetune/12-2/final\n"


def test_a_checkpoint_of_other_settings_is_refused(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("prepare-data")
    assert run("train", "train.max_steps=2")[0] == 0
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    code, record = run("train", "train.max_steps=2", "train.resume=auto", "train.seed=9")
    assert code == ExitCode.BAD_CONFIG
    assert "another model, data set or train settings" in record["reason"]


def test_a_loss_that_is_not_finite_stops_the_run_with_its_own_code(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.learning_rate=1e12", "train.max_grad_norm=1e12")
    assert code == ExitCode.NON_FINITE
    assert "lower train.learning_rate" in record["reason"]
    assert not (places / "chkpt" / "latest").exists()


@pytest.mark.feature("S001-41")
def test_out_of_memory_is_a_failed_record_and_not_success(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.train import model

    def full(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    run("prepare-data")
    monkeypatch.setattr(model, "build_model", full)
    code, record = run("train")
    assert code == ExitCode.OUT_OF_MEMORY
    assert record["outcome"] == "FAIL"
    assert "CUDA out of memory" in record["reason"]


def test_examples_longer_than_a_row_are_refused_before_training(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.sequence_length=900")
    assert code == ExitCode.BAD_DATA
    assert "longer than train.sequence_length 900" in record["reason"]


@pytest.mark.feature("S002-37")
def test_tokens_that_another_tokenizer_made_are_refused_before_training(
    places: Path, run: Any, model_dir: Path
) -> None:
    """A run on them ends well and has learned noise: nothing later can tell."""
    run("prepare-data")
    other = shutil.copytree(model_dir, places / "other")
    config = other / "tokenizer_config.json"
    config.write_text(config.read_text().replace("}", " }", 1))
    code, record = run("train", f"model={other}")
    assert code == ExitCode.BAD_DATA
    assert f"another tokenizer than that of {other}: tokenizer_config.json" in record["reason"]


@pytest.mark.parametrize("nested", [False, True])
def test_token_ids_above_the_models_vocabulary_are_refused_before_training(
    places: Path, run: Any, model_dir: Path, nested: bool
) -> None:
    """On a GPU they are an assert of the device: exit 77, and advice to drain the node."""
    run("prepare-data")
    other = shutil.copytree(model_dir, places / "other")
    config = json.loads((other / "config.json").read_text()) | {"vocab_size": 100}
    if nested:  # as models of text and images have it
        config = {"text_config": config}
    (other / "config.json").write_text(json.dumps(config))
    code, record = run("train", f"model={other}")
    assert code == ExitCode.BAD_DATA
    assert f"{other} knows the ids 0 to 99" in record["reason"]


@pytest.mark.feature("S001-24", "S003-40", "S004-17")
def test_full_training_in_bf16_runs_and_writes_a_model(places: Path, run: Any) -> None:
    from safetensors.torch import load_file

    run("prepare-data")
    code, record = run("train", "train.method=full", "train.dtype=bf16", "train.max_steps=2",
                       "train.gradient_checkpointing=true")  # fmt: skip
    assert code == 0, record
    weights = load_file(places / "chkpt" / "finetune" / "12" / "final" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    assert record["metrics"]["num_trained_parameters"] == record["metrics"]["num_parameters"]
    assert 0 < record["metrics"]["checkpoint_stall_s"] < 60
    assert run("evaluate")[0] == 0


@pytest.mark.feature("S001-24")
@pytest.mark.parametrize(
    ("method", "dtype", "computes"),
    [
        ("lora", "bf16", torch.bfloat16),
        ("qlora", "bf16", torch.bfloat16),
        ("full", "bf16", torch.bfloat16),
        ("lora", "fp32", torch.float32),
        ("full", "fp16", torch.float16),
    ],
)
def test_trained_weights_in_fp32_compute_in_the_type_of_the_recipe(
    method: str, dtype: str, computes: torch.dtype
) -> None:
    values: Any = {"method": method, "dtype": dtype}
    config = TrainConfig(dataset="x", max_steps=1, learning_rate=1.0, **values)
    with autocast(config, torch.device("cpu")):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is computes


@pytest.mark.feature("S001-24", "S003-40")
@pytest.mark.parametrize(("dtype", "computes"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_shards_are_gathered_in_the_type_of_the_recipe_and_summed_in_fp32(
    dtype: Any, computes: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class ShardingError(Exception):
        """Enough is known; two ranks are not needed for it."""

    def shard(module: Any, **options: Any) -> None:
        given.update(options)
        raise ShardingError

    monkeypatch.setattr("torch.distributed.fsdp.fully_shard", shard)
    monkeypatch.setattr("torch.distributed.device_mesh.init_device_mesh", lambda *_, **__: None)
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(2))

    def build(_: object, *, empty: bool) -> torch.nn.Module:
        assert empty, "each rank would have the whole model"
        return model

    task = SimpleNamespace(build=build, loss=lambda made, _: made)
    config = TrainConfig(dataset="x", max_steps=1, learning_rate=1.0, method="full", dtype=dtype)
    cpu = torch.device("cpu")
    run: Any = SimpleNamespace(config=config, task=task, strategy="fsdp", keeps_gathered=False)
    here: Any = SimpleNamespace(is_distributed=True, is_main=False, world_size=2, device=cpu)
    with pytest.raises(ShardingError):
        spread_fsdp(run, here)
    policy = given["mp_policy"]
    assert (policy.param_dtype, policy.reduce_dtype) == (computes, torch.float32)


@pytest.mark.feature("S003-07")
def test_gradients_are_bounded_and_told_as_they_were() -> None:
    module = torch.nn.Linear(2, 1, bias=False)
    strategy = Strategy(kind="ddp", module=module, model=module)
    for bound, left in ((1.0, 1.0), (10.0, 5.0)):
        module.weight.grad = torch.tensor([[3.0, 4.0]])
        assert strategy.clip(bound).item() == pytest.approx(5.0)
        assert module.weight.grad.norm().item() == pytest.approx(left, rel=1e-4)


@pytest.mark.feature("S003-07")
def test_the_optimizer_decays_weights_as_the_recipe_says() -> None:
    """Without a gradient that pulls, a weight shrinks by lr times decay in a step."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = build_optimizer([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert weight.item() == pytest.approx(0.95, rel=0.005)


@pytest.mark.feature("S001-29", "S003-07")
def test_warm_up_rises_to_the_full_rate_and_cosine_falls_to_zero() -> None:
    config = TrainConfig(dataset="x", max_steps=12, warmup_steps=2, learning_rate=1.0)
    factors = [learning_rate_factor(step, config=config, num_steps=12) for step in range(13)]
    assert factors[:3] == [0.5, 1.0, 1.0]
    # A straight line has 0.8 here, and the other values in common.
    assert factors[4] == pytest.approx(0.5 * (1 + math.cos(0.2 * math.pi)))
    assert factors[7] == pytest.approx(0.5)
    assert factors[12] == pytest.approx(0.0)


@pytest.mark.feature("S003-07")
def test_other_schedules_fall_in_a_line_and_not_at_all() -> None:
    config = TrainConfig(
        dataset="x", max_steps=12, warmup_steps=2, schedule="linear", learning_rate=1.0
    )
    for schedule, factor in (("linear", 0.8), ("constant", 1.0)):
        config = replace(config, schedule=schedule)
        assert learning_rate_factor(4, config=config, num_steps=12) == pytest.approx(factor)


@pytest.mark.feature("S002-40")
@pytest.mark.parametrize("world_size", [1, 4])
def test_an_epoch_is_every_row_once_however_many_ranks_share_them(world_size: int) -> None:
    """Of ten rows and four a step, two epochs end in the fifth step."""
    made: Any = SimpleNamespace(stream=SimpleNamespace(packs=range(10)))

    def is_due(step: int) -> bool:
        progress = SimpleNamespace(position=4 * (step + 1), rows_per_step=4)
        made.state = SimpleNamespace(
            progress=progress, world=SimpleNamespace(world_size=world_size)
        )
        return Trainer._falls(made, 1, 2)

    assert [step for step in range(10) if is_due(step)] == [4, 9]


@pytest.mark.feature("S002-82")
def test_rows_of_like_length_share_a_micro_batch() -> None:
    """Padding is computed on too: a short row beside a long one costs as much as that."""
    rows = [Row(length) for length in (9, 1) * 4]
    batches = Stream(packs=rows, seed=3).micro_batches(
        0, rank=0, world_size=1, micro_batch_size=4, num_rows=8
    )
    assert [{row.num_tokens for row in batch} for batch in batches] == [{9}, {1}]


@pytest.mark.feature("S000-12")
def test_the_order_of_rows_is_the_seeds_own_in_every_process() -> None:
    """A process keeps an order that it has made: two runs in one cannot tell where it is from."""
    stream = Stream(packs=range(6), seed=7)
    assert stream.rows(0, 12) == [4, 2, 1, 3, 0, 5, 4, 2, 3, 1, 5, 0]


@dataclass(frozen=True)
class Row:
    num_tokens: int


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_stream_gives_every_row_once_an_epoch_at_any_world_size(world_size: int) -> None:
    from tests.workloads.test_data import example_of, rows_of

    packs = pack(rows_of([example_of(10, first=i) for i in range(12)]), sequence_length=10)
    stream = Stream(packs=packs, seed=3)
    seen = []
    for position in range(0, 24, 4):
        step = [
            row
            for rank in range(world_size)
            for batch in stream.micro_batches(
                position, rank=rank, world_size=world_size, micro_batch_size=1, num_rows=4
            )
            for row in batch
        ]  # fmt: skip
        assert sorted(map(repr, step)) == sorted(map(repr, stream.rows(position, 4)))
        seen += step
    assert sorted(map(repr, seen[:12])) == sorted(map(repr, packs))
    assert sorted(map(repr, seen[12:])) == sorted(map(repr, packs))
    assert seen[:12] != seen[12:], "each epoch has its own order"
