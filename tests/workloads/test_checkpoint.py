"""Checkpoints of both kinds: whole or not at all, damaged ones skipped and kept, any world size."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import TCPStore

from tests.nightly import at_night, law
from tests.workloads.ranks import run_ranks
from tests.workloads.tiny_run import Run, Victim, make_run
from workloads.common.atomic import new_directory
from workloads.common.dist import World
from workloads.common.exit_codes import CheckpointError, ConfigError, ExitCode
from workloads.recipes.train import CheckpointConfig
from workloads.train import checkpoint
from workloads.train.inputs import StopRequest
from workloads.train.loop import Progress, Stream
from workloads.train.run_folder import (
    ELASTIC,
    SHARDED,
    STATE,
    Candidate,
    candidates,
    digest,
    remove_old,
)

WORLD = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))


def run_in(folder: Path, *, resume: str = "never", keep: int = 9, **config: Any) -> Run:
    """Returns a tiny run on one rank."""
    return make_run(WORLD, folder, resume=resume, config=CheckpointConfig(**config), keep=keep)


def saved(folder: Path, *steps: int, **config: Any) -> Run:
    """Trains to the last of `steps` and saves after each of them."""
    run = run_in(folder, **config)
    for step in steps:
        run.train(step)
        run.checkpoints.save(run.state, step, loss=float(step))
    run.checkpoints.wait()
    return run


def names(folder: Path) -> list[str]:
    """Returns the checkpoints that a folder has."""
    return sorted(each.path.name for each in candidates([folder / "proof" / "run"]))


def good_steps(folder: Path) -> list[int]:
    """Returns the steps of the checkpoints that are whole, the newest first."""
    found = candidates([folder / "proof" / "run"])
    return [each.step for each in found if each.problem() is None]


@pytest.mark.feature("S003-06")
def test_a_loaded_checkpoint_has_weights_optimizer_position_and_random_numbers(
    tmp_path: Path,
) -> None:
    before = saved(tmp_path, 3, background=False)
    numbers = (torch.rand(1), random.random())
    run = run_in(tmp_path, resume=str(tmp_path / "proof" / "run" / "checkpoint-3"))
    assert run.checkpoints.load(run.state)
    assert (torch.rand(1), random.random()) == numbers
    assert run.state.progress == before.state.progress
    for mine, theirs in zip(
        run.state.model.parameters(), before.state.model.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)
        for name, value in before.state.optimizer.state[theirs].items():
            assert run.state.optimizer.state[mine][name] == pytest.approx(value, abs=0)


@pytest.mark.feature("S003-05", "S003-09", "S003-21", "S003-22", "S003-26")
@pytest.mark.parametrize("kind", [SHARDED, ELASTIC])
def test_a_folder_has_the_files_of_its_kind_and_a_digest_of_each(tmp_path: Path, kind: Any) -> None:
    saved(tmp_path, 2, elastic_every=2 if kind is ELASTIC else 0)
    folder = tmp_path / "proof" / "run" / f"{kind.prefix}-2"
    assert kind.marker == ("_ELASTIC_SUCCESS" if kind is ELASTIC else "_SUCCESS")
    files = {"config.json", "trainer_state.json", ".metadata", "__0_0.distcp"}
    if kind is ELASTIC:
        files |= {"model.safetensors", "elastic_metadata.json"}
    assert {path.name for path in folder.iterdir()} == files | {kind.marker}
    marker = json.loads((folder / kind.marker).read_text())
    assert set(marker["files"]) == files
    assert (marker["step"], marker["world_size"]) == (2, 1)


@pytest.mark.feature("S003-06", "S003-09", "S003-26")
def test_an_elastic_checkpoint_has_the_optimizer_and_one_file_of_whole_weights(
    tmp_path: Path,
) -> None:
    """A published elastic checkpoint had the weights only and started the optimizer anew."""
    from safetensors.torch import load_file

    before = saved(tmp_path, 2, elastic_every=2)
    folder = tmp_path / "proof" / "run" / "elastic-checkpoint-2"
    whole = load_file(folder / "model.safetensors")
    for name, weight in before.state.model.named_parameters():
        assert torch.equal(whole[name], weight)
    run = run_in(tmp_path, resume=str(folder))
    assert run.checkpoints.load(run.state)
    moments = [
        run.state.optimizer.state[weight]["exp_avg"] for weight in run.state.model.parameters()
    ]
    assert all(moment.abs().sum() > 0 for moment in moments)
    assert json.loads((folder / "elastic_metadata.json").read_text())["reason"] == "interval"


@pytest.mark.feature("S003-06")
def test_the_loss_scale_of_fp16_and_running_means_are_part_of_the_state(tmp_path: Path) -> None:
    def with_more(run: Run, scale: float, mean: float) -> Run:
        run.state.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        run.state.model.register_buffer("mean", torch.tensor([mean]))
        return run

    before = with_more(run_in(tmp_path, elastic_every=2), 1024.0, 0.5)
    before.train(2)
    before.checkpoints.save(before.state, 2, loss=1.0)
    before.checkpoints.wait()
    folder = tmp_path / "proof" / "run" / "elastic-checkpoint-2"
    run = with_more(run_in(tmp_path, resume=str(folder)), 65536.0, 0.0)
    assert run.checkpoints.load(run.state)
    assert run.state.scaler is not None
    assert run.state.scaler.get_scale() == 1024.0
    assert dict(run.state.model.named_buffers())["mean"].item() == 0.5


def test_a_checkpoint_of_a_run_in_bf16_whose_optimizer_had_the_fp32_weights_goes_on_in_fp32(
    tmp_path: Path,
) -> None:
    """As they were saved up to 2026-11: weights in bf16, `weight_fp32` and a whole step beside."""
    run = run_in(tmp_path, background=False)
    run.train(2)
    expected = [weight.detach().clone() for weight in run.state.model.parameters()]
    for weight in run.state.model.parameters():
        kept = run.state.optimizer.state[weight]
        kept |= {"weight_fp32": weight.detach().clone(), "step": 2}
        weight.data = weight.data.bfloat16()
    run.checkpoints.save(run.state, 2, loss=1.0)
    run.checkpoints.wait()
    later = run_in(tmp_path, resume=str(tmp_path / "proof" / "run" / "checkpoint-2"))
    assert later.checkpoints.load(later.state)
    for weight, wanted in zip(later.state.model.parameters(), expected, strict=True):
        assert torch.equal(weight, wanted)
    never = run_in(tmp_path / "never")
    assert later.train(4) == {step: loss for step, loss in never.train(4).items() if step > 2}


@pytest.mark.feature("S003-21", "S003-28", "S003-52")
@pytest.mark.parametrize(("most", "name"), [("2", "elastic-checkpoint-1"), ("1", "checkpoint-1")])
@pytest.mark.parametrize("is_told", [True, False], ids=["here", "on-another-rank"])
def test_a_stop_of_a_job_that_may_resize_saves_an_elastic_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, name: str, is_told: bool
) -> None:
    monkeypatch.setenv("SOPERATOR_MIN_NODES", "1")
    monkeypatch.setenv("SOPERATOR_MAX_NODES", most)
    stop = StopRequest()
    run = make_run(WORLD, tmp_path, resume="never", config=CheckpointConfig(), keep=9, stop=stop)
    run.train(1)
    if is_told:
        stop.signal_name = "SIGUSR1"
    else:
        monkeypatch.setattr(World, "gather", lambda *_: [True])
    run.checkpoints.save(run.state, 1)
    run.checkpoints.wait()
    assert names(tmp_path) == [name]
    if name.startswith("elastic") and is_told:
        folder = run.checkpoints.folder.path / name
        assert json.loads((folder / "elastic_metadata.json").read_text())["reason"] == "SIGUSR1"


@pytest.mark.feature("S003-21", "S003-27")
def test_a_run_saves_both_kinds_each_at_its_own_interval(places: Path, run: Any) -> None:
    run("prepare-data")
    options = ("train.checkpoint_every=2", 'train.checkpoint={"elastic_every": 3}')
    assert run("train", "train.max_steps=4", *options)[0] == 0
    made = candidates([places / "chkpt" / "finetune" / "12"])
    assert [each.path.name for each in made] == [
        "checkpoint-4",
        "elastic-checkpoint-3",
        "checkpoint-2",
    ]


def test_a_run_saves_again_after_its_declared_seconds(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is 0.4 s after the one before: at the begin, a step, a save, its end.

    0.4 at the begin, 1.6 in step 3: late; saved from 2.0 to 2.4; 3.2 in step 5: late again.
    """
    looks = itertools.count(1)
    clock = SimpleNamespace(monotonic=lambda: next(looks) * 0.4, time=time.time)
    monkeypatch.setattr(checkpoint, "time", clock)
    run("prepare-data")
    options = ("train.checkpoint_every=0", "train.keep_last=9")
    timed = 'train.checkpoint={"every_s": 1, "background": false}'
    code, record = run("train", "train.max_steps=6", *options, timed)
    assert code == 0
    made = candidates([places / "chkpt" / "finetune" / "12"])
    assert [each.step for each in made] == [6, 5, 3]
    assert record["metrics"]["longest_checkpoint_save_s"] == pytest.approx(0.4)


def test_no_save_is_late_while_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To begin the next one waits for it: training would stand."""
    run = run_in(tmp_path, every_s=1)
    looks = itertools.count(time.monotonic() + 10, 10)
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    assert run.checkpoints.is_late()
    run.checkpoints._running = (tmp_path, Future())
    assert not run.checkpoints.is_late()


@pytest.mark.feature("S003-31")
def test_a_run_keeps_elastic_ones_in_their_own_place_and_a_restart_finds_them(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PLACE_ELASTIC", str(places / "elastic"))
    (places / "elastic").mkdir()
    run("prepare-data")
    options = ("train.checkpoint_every=0", 'train.checkpoint={"elastic_every": 2}')
    assert run("train", "train.max_steps=2", *options)[0] == 0
    kept = places / "elastic" / "finetune" / "12"
    assert [each.path.name for each in candidates([kept])] == ["elastic-checkpoint-2"]
    assert candidates([places / "chkpt" / "finetune" / "12"]) == []
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    said: list[str] = []
    monkeypatch.setattr(checkpoint, "log", said.append)
    assert run("train", "train.resume=requeue", *options)[0] == 0
    assert said[0] == f"resumed from {kept / 'elastic-checkpoint-2'} at step 2"
    shutil.rmtree(places / "chkpt" / "finetune")  # a run that was stopped has none there
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    said.clear()
    assert run("train", "train.resume=auto", *options)[0] == 0
    assert said[0].startswith(f"resumed from {kept}/"), "another job goes on with it too"


@pytest.mark.feature("S002-64", "S003-10")
def test_the_last_ones_and_the_best_stay(tmp_path: Path) -> None:
    """The best by validation: the loss of the step that was saved is that of one batch."""
    for folder, config in (("best", {}), ("last", {"keep_best": False}), ("none", {})):
        run = run_in(tmp_path / folder, keep=2, **config)
        for step in (1, 2, 3, 4):
            run.train(step)
            if step == 1 and folder != "none":
                found = run.state.progress.validated.after(step, 0.5)
                run.state.progress = replace(run.state.progress, validated=found)
            run.checkpoints.save(run.state, step, loss=float(step))
        run.checkpoints.wait()
    elastic = saved(tmp_path / "elastic", 1, 2, 3, keep=2, elastic_every=1)
    assert names(tmp_path / "elastic") == ["elastic-checkpoint-2", "elastic-checkpoint-3"], elastic
    last = ["checkpoint-3", "checkpoint-4"]
    assert names(tmp_path / "best") == ["checkpoint-1", *last]
    assert names(tmp_path / "last") == names(tmp_path / "none") == last


@pytest.mark.feature("S003-21")
def test_of_one_step_the_sharded_one_is_tried_first(tmp_path: Path) -> None:
    """It is the faster one to load; another world size takes it too."""
    for name in ("elastic-checkpoint-4", "checkpoint-4", "elastic-checkpoint-6", "checkpoint-9.x"):
        (tmp_path / name).mkdir()
    found = [each.path.name for each in candidates([tmp_path])]
    assert found == ["elastic-checkpoint-6", "checkpoint-4", "elastic-checkpoint-4"]


@pytest.mark.feature("S003-21", "S003-27")
def test_an_elastic_one_comes_every_so_many_steps_and_takes_no_sharded_ones_place(
    tmp_path: Path,
) -> None:
    saved(tmp_path, *range(1, 8), elastic_every=3)
    sharded = [f"checkpoint-{step}" for step in (1, 2, 4, 5, 7)]
    assert names(tmp_path) == [*sharded, "elastic-checkpoint-3", "elastic-checkpoint-6"]
    last = tmp_path / "last"
    saved(last, *range(1, 8), elastic_every=3, keep=1, keep_best=False)
    assert names(last) == ["checkpoint-7", "elastic-checkpoint-6"]


@pytest.mark.feature("S002-64")
def test_those_of_later_steps_stay_when_a_run_came_back_from_before_them(tmp_path: Path) -> None:
    """They could not be loaded; to count them would remove what the run goes on from."""
    folder = saved(tmp_path, 1, 2, 4, keep=9).checkpoints.folder.path
    newest = Candidate(path=folder / "checkpoint-2", kind=SHARDED, step=2)
    removed = remove_old(newest, keep_last=1, best_step=None, damaged=())
    assert [path.name for path in removed] == ["checkpoint-1"]
    assert names(tmp_path) == ["checkpoint-2", "checkpoint-4"]


def test_one_that_a_kill_left_half_removed_goes_with_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its marker nothing counted it, and nothing removed it again: it kept its disk."""
    folder = saved(tmp_path, 1, keep=1, keep_best=False).checkpoints.folder.path

    def killed(path: Path, **_: Any) -> None:
        next(file for file in path.iterdir() if file.is_file()).unlink()
        raise KeyboardInterrupt

    newest = Candidate(path=folder / "checkpoint-2", kind=SHARDED, step=2)
    shutil.copytree(folder / "checkpoint-1", newest.path)
    monkeypatch.setattr("workloads.train.run_folder.shutil", SimpleNamespace(rmtree=killed))
    with pytest.raises(KeyboardInterrupt):
        remove_old(newest, keep_last=1, best_step=None, damaged=())
    monkeypatch.undo()
    assert [each.path.name for each in candidates([folder])] == ["checkpoint-2"]
    saved(tmp_path, 3, keep=2, keep_best=False)
    assert {path.name for path in folder.iterdir()} == {"checkpoint-2", "checkpoint-3"}


def test_what_a_kill_left_goes_with_the_next_start_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that had made its last save made no other: half of what it wrote or removed stayed."""
    folder = saved(tmp_path, 1).checkpoints.folder.path
    for name in (".checkpoint-0.0a.partial", ".final.12.partial", ".merged.12.old"):
        shutil.copytree(folder / "checkpoint-1", folder / name)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run = run_in(tmp_path, resume="requeue")
    assert run.checkpoints.load(run.state)
    assert {path.name for path in folder.iterdir()} == {"checkpoint-1"}


def test_an_old_one_whose_files_are_in_use_does_not_fail_the_save_that_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps a file that is open, and its folder: the last save "failed", and the run too."""

    def busy(path: str, **_: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    run = saved(tmp_path, 1, keep=1, keep_best=False)
    run.train(2)
    monkeypatch.setattr(os, "rmdir", busy)
    run.checkpoints.save(run.state, 2)
    run.checkpoints.wait()
    assert names(tmp_path) == ["checkpoint-2"]
    with new_directory(run.checkpoints.folder.final) as partial:
        (partial / "a").touch()
    with new_directory(run.checkpoints.folder.final, replace=True) as partial:
        (partial / "b").touch()
    assert [path.name for path in run.checkpoints.folder.final.iterdir()] == ["b"]


def test_the_newest_is_the_highest_step_not_the_latest_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A published trainer took the folder with the latest time."""
    saved(tmp_path, 9, 10)
    os.utime(tmp_path / "proof" / "run" / "checkpoint-10", (1, 1))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run = run_in(tmp_path, resume="requeue")
    assert run.checkpoints.load(run.state)
    assert run.state.progress.step == 10


def test_a_restart_for_nodes_that_came_or_went_resumes_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun leaves its own restart count at 0 then: the run would begin at step 0."""
    saved(tmp_path, 2)
    monkeypatch.setenv("SOPERATOR_STARTS", "2")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    run = run_in(tmp_path, resume="requeue")
    assert run.checkpoints.load(run.state)
    monkeypatch.delenv("SOPERATOR_STARTS")
    fresh = run_in(tmp_path, resume="never")
    assert not fresh.checkpoints.load(fresh.state)


@pytest.mark.parametrize("began_with", ["never", "checkpoint-1"])
def test_a_restart_goes_on_from_its_own_whatever_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, began_with: str
) -> None:
    """A job that is preempted would begin again with each restart, and never end."""
    other = saved(tmp_path / "other", 1).checkpoints.folder.path
    resume = began_with if began_with == "never" else str(other / began_with)
    saved(tmp_path, 2, 4)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run = run_in(tmp_path, resume=resume)
    assert run.checkpoints.load(run.state)
    assert run.state.progress.step == 4
    assert run.checkpoints.folder.path == tmp_path / "proof" / "run"


def test_a_damaged_later_one_does_not_push_out_what_is_saved_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was ranked among the last, so that each new one was removed after "saved"."""
    folder = saved(tmp_path, 2, 4, 6).checkpoints.folder.path
    for step in (4, 6):
        shard = folder / f"checkpoint-{step}" / "__0_0.distcp"
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    run = run_in(tmp_path, resume="requeue", keep=2, keep_best=False)
    assert run.checkpoints.load(run.state)
    for step in (3, 5):
        run.train(step)
        run.checkpoints.save(run.state, step)
        run.checkpoints.wait()
        assert f"checkpoint-{step}" in names(tmp_path)
    good = [each.path.name for each in candidates([folder]) if each.problem() is None]
    assert good == ["checkpoint-5", "checkpoint-3"]


@pytest.mark.feature("S003-24")
def test_a_sharded_one_of_another_size_is_refused_where_the_recipe_wants_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 2, elastic_every=2)
    saved(tmp_path, 3)
    folder = tmp_path / "proof" / "run"
    marker = json.loads((folder / "checkpoint-3" / "_SUCCESS").read_text())
    (folder / "checkpoint-3" / "_SUCCESS").write_text(json.dumps({**marker, "world_size": 4}))
    strict = run_in(tmp_path, resume=str(folder / "checkpoint-3"), same_world_size_only=True)
    refusal = r"checkpoint-3 was saved at world size 4, this run has 1.*elastic-checkpoint-2"
    with pytest.raises(ConfigError, match=refusal):
        strict.checkpoints.load(strict.state)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    strict = run_in(tmp_path, resume="requeue", same_world_size_only=True)
    assert strict.checkpoints.load(strict.state)
    assert strict.state.progress.step == 2, "a restart takes the elastic one by itself"
    lenient = run_in(tmp_path, resume="requeue")
    assert lenient.checkpoints.load(lenient.state)
    assert lenient.state.progress.step == 3


def rewrite_state(folder: Path, **values: int) -> None:
    """Changes what a checkpoint says of its run, as an older one says it, and its marker."""
    state, marker = folder / STATE, folder / SHARDED.marker
    found = json.loads(state.read_text())
    found.pop("rows_asked", None)
    state.write_text(json.dumps({**found, **values}))
    was = json.loads(marker.read_text())
    files = {**was["files"], STATE: asdict(digest(state))}
    marker.write_text(json.dumps({**was, "files": files}))


@pytest.mark.feature("S003-29", "S003-30")
def test_at_another_world_size_a_step_keeps_its_rows_and_at_the_same_one_they_must_be_equal(
    tmp_path: Path,
) -> None:
    """A recipe's rows of a step are by the rank: fewer ranks would make another training of it."""
    saved(tmp_path, 2)
    folder = tmp_path / "proof" / "run" / "checkpoint-2"

    def says(**values: int) -> Run:
        rewrite_state(folder, **values)
        return run_in(tmp_path, resume=str(folder))

    smaller = says(world_size=4, rows_per_step=16)
    assert smaller.checkpoints.load(smaller.state)
    progress = smaller.state.progress
    assert (progress.step, progress.rows_per_step, progress.world_size) == (2, 16, 1)
    equal = says(world_size=1)
    with pytest.raises(ConfigError, match="a train step had 16 rows, now 4; restore train"):
        equal.checkpoints.load(equal.state)


def test_a_run_that_changed_its_size_goes_on_at_the_new_one_as_often_as_it_is_restarted(
    tmp_path: Path,
) -> None:
    """It keeps the rows of a step; the second start took that for another recipe, and ended."""
    saved(tmp_path, 2)
    folder = tmp_path / "proof" / "run" / "checkpoint-2"
    rewrite_state(folder, world_size=4, rows_per_step=16)
    for step in (3, 4):
        run = run_in(tmp_path, resume=str(folder))
        assert run.checkpoints.load(run.state)
        assert run.state.progress.rows_per_step == 16
        run.train(step, save_at=step)
        folder = run.checkpoints.folder.path / f"checkpoint-{step}"
    other = run_in(tmp_path, resume=str(folder))
    other.state.progress = replace(other.state.progress, rows_per_step=8)
    with pytest.raises(ConfigError, match="a train step had 4 rows, now 8; restore train"):
        other.checkpoints.load(other.state)


@pytest.mark.parametrize("before", ["ddp", "fsdp", None], ids=["same", "other", "older"])
def test_going_on_under_another_strategy_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str | None
) -> None:
    saved(tmp_path, 2)
    folder = tmp_path / "proof" / "run" / "checkpoint-2"
    state, marker = folder / STATE, folder / SHARDED.marker
    values = json.loads(state.read_text())
    assert values.pop("strategy") == "ddp"
    state.write_text(json.dumps(values if before is None else {**values, "strategy": before}))
    was = json.loads(marker.read_text())
    files = {**was["files"], STATE: asdict(digest(state))}
    marker.write_text(json.dumps({**was, "files": files}))
    run = run_in(tmp_path, resume=str(folder))
    assert run.checkpoints.load(run.state)
    told = capsys.readouterr()
    said = "warning: train.strategy: saved under fsdp, goes on under ddp" in told.out + told.err
    assert said is (before == "fsdp")


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    run = run_in(tmp_path, resume=str(tmp_path / "proof" / "run" / "checkpoint-1"))
    run.state.progress = Progress(
        step=0, position=0, rows_per_step=4, world_size=1, fingerprint="other"
    )
    with pytest.raises(ConfigError, match="--resume never"):
        run.checkpoints.load(run.state)


def truncate(folder: Path) -> None:
    """Leaves half of a shard."""
    shard = next(folder.glob("*.distcp"))
    os.truncate(shard, shard.stat().st_size // 2)


def flip(folder: Path) -> None:
    """Flips a bit in the middle of a shard."""
    shard = next(folder.glob("*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)


@pytest.mark.feature("S002-64", "S003-11", "S003-22")
@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        flip,
        pytest.param(lambda folder: (folder / "_SUCCESS").unlink(), id="no marker"),
        pytest.param(lambda folder: (folder / ".metadata").unlink(), id="no metadata"),
    ],
)
def test_a_damaged_one_is_named_skipped_and_kept(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """A published trainer answered a checkpoint it could not validate by deleting all of them."""
    Victim(tmp_path, steps=3).end()
    newest = tmp_path / "proof" / "run" / "checkpoint-3"
    damage(newest)
    code, told = Victim(tmp_path, steps=3, resume=1).end()
    assert code == 0, told
    assert f"skipped {newest}" in told
    assert "checkpoint-2 at step 2" in told
    assert any(newest.parent.glob("damaged-checkpoint-3-*")) or newest.is_dir()


def test_a_process_killed_in_its_saves_goes_on_from_the_last_good_one(tmp_path: Path) -> None:
    moments, last = random.Random(11), -1
    for _ in range(4):
        killed = Victim(tmp_path, steps=100_000, resume=1)
        killed.saved.acquire()
        time.sleep(moments.uniform(0, 0.05))
        killed.process.kill()
        killed.end()
        good = [
            each.step for each in candidates([tmp_path / "proof" / "run"]) if not each.problem()
        ]
        assert good[0] > last
        last = good[0]
    code, told = Victim(tmp_path, steps=1, resume=1).end()
    assert code == 0, told
    assert f"at step {last}" in told


def test_on_a_full_disk_the_last_good_one_stays_and_the_job_says_so(tmp_path: Path) -> None:
    """No file grows beyond 4 KB after the second save."""
    code, told = Victim(tmp_path, steps=5, full_after=2).end()
    assert (code, good_steps(tmp_path)) == (ExitCode.NOT_SAVED, [2, 1]), told
    assert "checkpoint-3 was not saved" in told


def test_a_save_on_a_full_filesystem_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.checkpoint.filesystem import FileSystem

    @contextlib.contextmanager
    def full(*_: object) -> Iterator[BinaryIO]:
        with Path("/dev/full").open("wb") as file:
            yield file

    run = saved(tmp_path, 1)
    run.train(2)
    monkeypatch.setattr(FileSystem, "create_stream", full)
    run.checkpoints.save(run.state, 2, loss=1.0)
    words = (
        r"checkpoint-2 was not saved: rank 0: No space left on device; [\d,]+ MiB are free there"
    )
    with pytest.raises(CheckpointError, match=words):
        run.checkpoints.wait()


def test_a_save_that_fails_between_two_others_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(checkpoint.CommittingWriter, "write_data", full)
        run.train(2)
        run.checkpoints.save(run.state, 2, loss=1.0)
        with pytest.raises(CheckpointError, match=r"checkpoint-2 was not saved.*No space left"):
            run.checkpoints.wait()
        run.checkpoints.save(run.state, 2, loss=1.0)
        # As the next save does it.
        run.checkpoints.wait(raises=False)
    assert "the run goes on from memory" in capsys.readouterr().err
    run.train(3)
    run.checkpoints.save(run.state, 3, loss=1.0)
    run.checkpoints.wait()
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-3"]
    assert run.checkpoints.num_failed_saves == 2


@pytest.mark.feature("S002-82", "S003-24")
def test_the_state_that_is_saved_is_that_of_the_step_although_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    run = run_in(tmp_path)
    run.train(2)
    expected = [weight.detach().clone() for weight in run.state.model.parameters()]
    go_on = threading.Event()
    write = checkpoint.CommittingWriter.write_data

    def held(*args: Any) -> Any:
        assert go_on.wait(60)
        return write(*args)

    monkeypatch.setattr(checkpoint.CommittingWriter, "write_data", held)
    run.checkpoints.save(run.state, 2, loss=1.0)
    for _ in range(3):
        run._step()
    go_on.set()
    run.checkpoints.wait()
    later = run_in(tmp_path, resume=str(tmp_path / "proof" / "run" / "checkpoint-2"))
    later.checkpoints.load(later.state)
    for mine, theirs in zip(later.state.model.parameters(), expected, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.feature("S002-82")
def test_a_state_that_host_memory_has_no_room_for_is_saved_without_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    staging = run_in(tmp_path).checkpoints
    eighty_bytes = {"weight": torch.zeros(20)}
    monkeypatch.setattr(checkpoint, "available_bytes", lambda: 101)
    assert staging._has_room(eighty_bytes)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert not staging._has_room(eighty_bytes), "each rank of the node makes a copy"
    assert "saves block training" in capsys.readouterr().err

    def in_background(*_: Any, **__: Any) -> None:
        raise AssertionError("a copy was made")

    monkeypatch.setattr(checkpoint, "dcp_async_save", in_background)
    saved(tmp_path, 1)
    assert names(tmp_path) == ["checkpoint-1"]
    monkeypatch.setattr(checkpoint, "available_bytes", lambda: 2**40)
    saved(tmp_path / "blocking", 1, background=False)
    assert names(tmp_path / "blocking") == ["checkpoint-1"]


@pytest.mark.feature("S003-05", "S003-29")
@pytest.mark.parametrize("num_ranks", [2, at_night(3)])
def test_saves_and_loads_at_every_world_size_go_on_with_the_same_losses(
    tmp_path: Path, num_ranks: int
) -> None:
    """The job train, saved and loaded at one to `num_ranks`, by DDP and FSDP2, both kinds."""
    # As under torchrun, whose agent has the store at which its ranks meet.
    agent = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    done = run_ranks(
        *("-m", "workloads.train.prove_resume", f"--folder={tmp_path}"),
        num_ranks=num_ranks,
        environment={"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": f"{agent.port}"},
        timeout_s=500,
    )
    table = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert done.returncode == 0, [line for line in table if "FAIL" in line] or done.stderr[-3000:]
    ways = 1 + 2 * (num_ranks - 1)  # FSDP2 takes two ranks
    assert len(table) == ways * 2 * ways
    assert sum("bit-equal" in line for line in table) >= ways * 2
    assert not any(tmp_path.iterdir()), "the proof removes what it wrote"


FORGETFUL = """
import sys
from workloads.job import end
from workloads.train import prove_resume
from workloads.train.checkpoint import FolderCheckpoints

load = FolderCheckpoints.load
def without_moments(self, state):
    loaded = load(self, state)
    state.optimizer.state.clear()
    return loaded
FolderCheckpoints.load = without_moments
end(prove_resume.main(["--folder", sys.argv[1]]))
"""


def test_the_proof_fails_where_a_load_forgets_the_optimizer(tmp_path: Path) -> None:
    script = tmp_path / "forgetful.py"
    script.write_text(FORGETFUL)
    done = run_ranks(str(script), str(tmp_path / "proof"))
    assert "0 PASS, 2 FAIL, 1 NOT RUN" in done.stdout, done.stderr[-3000:]
    assert done.returncode == ExitCode.FAILED


@pytest.mark.feature("S003-30")
@law(60)
@given(
    num_rows=st.integers(1, 40),
    rows_per_step=st.integers(1, 12),
    micro_batch_size=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20),
)
def test_no_row_is_seen_twice_or_left_out_while_the_world_size_changes(
    num_rows: int, rows_per_step: int, micro_batch_size: int, sizes: list[int]
) -> None:
    stream = Stream(packs=range(num_rows), seed=1, length=lambda row: row)
    seen: list[int] = []
    position = 0
    for size in sizes:
        shares = [
            stream.micro_batches(
                position,
                rank=rank,
                world_size=size,
                micro_batch_size=micro_batch_size,
                num_rows=rows_per_step,
            )
            for rank in range(size)
        ]
        assert len({len(share) for share in shares}) == 1, "collectives must match"
        seen += [row for share in shares for rows in share for row in rows]
        position += rows_per_step
    for epoch in range(0, len(seen), num_rows):
        part = seen[epoch : epoch + num_rows]
        if rows_per_step == 1 or len(part) == num_rows == rows_per_step:
            assert len(set(part)) == len(part)
    whole = position // num_rows * num_rows
    rows = stream.rows(0, whole)
    assert sorted(rows) == sorted(list(range(num_rows)) * (position // num_rows))
    assert sorted(seen) == sorted(stream.rows(0, position))


@pytest.mark.feature("S003-11")
def test_every_file_is_hashed_by_one_of_the_ranks(tmp_path: Path) -> None:
    """Each rank hashes its share: damage in any file is seen by one of them."""
    saved(tmp_path, 1)
    folder = tmp_path / "proof" / "run" / "checkpoint-1"
    found = Candidate(path=folder, kind=SHARDED, step=1)
    for name in found.read_marker().files:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
        problems = [found.problem(share=rank, of=3) for rank in range(3)]
        assert [each for each in problems if each] == [f"{name} is damaged"]
        (folder / name).write_bytes(whole)


@pytest.mark.feature("S003-22")
def test_a_candidate_without_its_marker_is_not_committed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    found = Candidate(path=folder, kind=SHARDED, step=7)
    assert found.problem() == "not committed"
