"""Checkpoints: whole or not at all, damaged ones skipped and kept."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from workloads.common.dist import World
from workloads.common.exit_codes import ConfigError
from workloads.train import checkpoint
from workloads.train.optimizer import AdamW

WORLD = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))


def state(value: float = 1.0) -> tuple[torch.nn.Module, AdamW]:
    """Returns a model with one update behind it."""
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(folder: Path, step: int, *, value: float = 1.0, keep_last: int = 2) -> torch.nn.Module:
    """Commits checkpoint `step`; returns the model."""
    model, optimizer = state(value)
    progress = checkpoint.Progress(step=step, position=7 * step, world_size=1, fingerprint="f")
    checkpoint.save(
        folder,
        model=model,
        optimizer=optimizer,
        progress=progress,
        world=WORLD,
        keep_last=keep_last,
    )
    return model


def test_a_loaded_checkpoint_has_the_weights_optimizer_and_position(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.0)
    saved = save(tmp_path, 5, value=3.0)
    expected = torch.rand(1)
    progress = checkpoint.load(
        tmp_path / "checkpoint-5", model=model, optimizer=optimizer, world=WORLD, fingerprint="f"
    )
    assert (progress.step, progress.position) == (5, 35)
    assert torch.equal(model.weight, saved.get_parameter("weight"))
    assert optimizer.state[model.weight]["step"] == 1
    assert torch.equal(torch.rand(1), expected), "random numbers go on where they were"


def test_only_the_last_committed_checkpoints_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep_last=2)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "checkpoint-3",
        "checkpoint-4",
    ]


def test_the_newest_is_the_highest_step_not_the_latest_file(tmp_path: Path) -> None:
    save(tmp_path, 10)
    save(tmp_path, 9, keep_last=5)
    os.utime(tmp_path / "checkpoint-10", (1, 1))
    assert checkpoint.newest_good(tmp_path) == tmp_path / "checkpoint-10"


@pytest.mark.parametrize("stage", ["save_file", "torch.save", "rename"])
def test_kill_9_during_a_save_leaves_no_half_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    save(tmp_path, 1)
    child = os.fork()
    if child == 0:

        def die(*args: Any, **kwargs: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if stage == "save_file":
            monkeypatch.setattr(checkpoint, "save_file", die)
        elif stage == "torch.save":
            monkeypatch.setattr(torch, "save", die)
        else:
            monkeypatch.setattr(Path, "rename", die)
        save(tmp_path, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == ["checkpoint-1"]
    assert checkpoint.newest_good(tmp_path) == tmp_path / "checkpoint-1"
    save(tmp_path, 2)
    assert checkpoint.newest_good(tmp_path) == tmp_path / "checkpoint-2"


def flip(path: Path) -> None:
    """Changes the last byte."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


DAMAGE = {
    "trained.safetensors is damaged": lambda path: flip(path / checkpoint.WEIGHTS),
    "trainer.pt is damaged": lambda path: (path / checkpoint.TRAINER).write_bytes(b"short"),
    "trainer_state.json is missing": lambda path: (path / checkpoint.STATE).unlink(),
    "not committed": lambda path: (path / checkpoint.SUCCESS).unlink(),
    "_SUCCESS cannot be read": lambda path: (path / checkpoint.SUCCESS).write_text("{"),
}


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_checkpoint_is_named_skipped_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reason: str
) -> None:
    """A published trainer answered a checkpoint it could not validate by deleting all of them."""
    save(tmp_path, 1)
    save(tmp_path, 2)
    damaged = tmp_path / "checkpoint-2"
    DAMAGE[reason](damaged)
    left = sorted(path.name for path in damaged.iterdir())
    assert checkpoint.newest_good(tmp_path) == tmp_path / "checkpoint-1"
    assert f"skipped {damaged}: {reason}" in capsys.readouterr().err
    assert sorted(path.name for path in damaged.iterdir()) == left
    # The run reaches step 2 again: the damaged one moves aside, its name goes to a good one.
    save(tmp_path, 2)
    assert checkpoint.newest_good(tmp_path) == damaged
    assert [p for p in tmp_path.iterdir() if p.name.startswith("damaged-checkpoint-2-")]


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1)
    model, optimizer = state()
    with pytest.raises(ConfigError, match="--resume never"):
        checkpoint.load(
            tmp_path / "checkpoint-1",
            model=model,
            optimizer=optimizer,
            world=WORLD,
            fingerprint="other",
        )


def test_the_marker_lists_the_hash_of_every_other_file(tmp_path: Path) -> None:
    save(tmp_path, 3)
    folder = tmp_path / "checkpoint-3"
    marker = json.loads((folder / checkpoint.SUCCESS).read_text())
    others = {path.name for path in folder.iterdir()} - {checkpoint.SUCCESS}
    assert marker["step"] == 3
    assert set(marker["sha256"]) == others
