"""The part of the proof that breaks things: damaged files, killed processes, a full disk.

Each is done to processes of one rank, as no part of the proof may end another.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from workloads.common.dist import World
from workloads.common.exit_codes import ExitCode, WorkloadError, reason_of
from workloads.common.job import end
from workloads.common.log import log
from workloads.train.checkpoint_config import CheckpointConfig
from workloads.train.checkpoint_format import candidates
from workloads.train.proof_run import Line, Part, make_run

_NUM_KILLS = 4
_FULL_BYTES = 4096
"""Bytes that a file has at most on the disk that is full."""


def prove_damage(folder: Path) -> list[Line]:
    """Break the newest checkpoint in every way; the one before it must be taken, and told."""

    def truncate(path: Path) -> None:
        shard = next(path.glob("*.distcp"))
        os.truncate(shard, shard.stat().st_size // 2)

    def flip(path: Path) -> None:
        shard = next(path.glob("*.distcp"))
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)

    damages: dict[str, Callable[[Path], None]] = {
        "truncated shard": truncate,
        "flipped bit": flip,
        "missing marker": lambda path: (path / "_SUCCESS").unlink(),
        "missing metadata": lambda path: (path / ".metadata").unlink(),
    }
    return [
        _after_damage(folder / name.replace(" ", "-"), name, damage)
        for name, damage in damages.items()
    ]


def _after_damage(folder: Path, name: str, damage: Callable[[Path], None]) -> Line:
    _Victim(folder, steps=3).end()
    newest = folder / "proof" / "run" / "checkpoint-3"
    damage(newest)
    code, told = _Victim(folder, steps=3, resume=1).end()
    skipped = f"skipped {newest}" in told
    resumed = "checkpoint-2 at step 2" in told
    kept = any(newest.parent.glob("damaged-checkpoint-3-*")) or newest.is_dir()
    passed = code == 0 and skipped and resumed and kept
    detail = "the one before it was taken, and told" if passed else told[-300:]
    return Line(what=name, outcome="PASS" if passed else "FAIL", detail=detail)


def prove_kills(folder: Path) -> Line:
    """Kill a process that saves all the time, at random moments; it must always go on."""
    what = f"kill -9 at {_NUM_KILLS} random moments of saves"
    moments = random.Random(11)
    last = -1
    for _ in range(_NUM_KILLS):
        killed = _Victim(folder, steps=100_000, resume=1)
        killed.saved.acquire()
        time.sleep(moments.uniform(0, 0.05))
        killed.process.kill()
        killed.end()
        good = [each for each in candidates([folder / "proof" / "run"]) if each.problem() is None]
        if not good or good[0].step <= last:
            return Line(what=what, outcome="FAIL", detail=f"newest good after {last}: {good[:1]}")
        last = good[0].step
    code, told = _Victim(folder, steps=1, resume=1).end()
    passed = code == 0 and f"at step {last}" in told
    detail = f"continued at step {last}" if passed else told[-300:]
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=detail)


def prove_full_disk(folder: Path) -> Line:
    """Let no file grow beyond 4 KB after the second save, as on a full disk."""
    what = "full disk"
    code, told = _Victim(folder, steps=5, full_after=2).end()
    good = [each for each in candidates([folder / "proof" / "run"]) if each.problem() is None]
    passed = (
        code == int(ExitCode.NOT_SAVED)
        and [each.step for each in good] == [2, 1]
        and "checkpoint-3 was not saved" in told
    )
    detail = f"exit {code}, good: {[each.path.name for each in good]}"
    return Line(what=what, outcome="PASS" if passed else "FAIL", detail=detail)


class _Victim:
    """A process of one rank that saves after every step."""

    def __init__(self, folder: Path, **options: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{uuid.uuid4().hex}.log"
        # A server that has torch already starts them: it is in no process group of ours.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["workloads.train.checkpoint", "workloads.train.optimizer"])
        self.saved = context.Semaphore(0)
        self.process = context.Process(
            target=victim, args=(folder, self._log, self.saved), kwargs=options
        )
        self.process.start()

    def end(self) -> tuple[int, str]:
        """Wait; return its exit code and what it told."""
        self.process.join()
        return self.process.exitcode or 0, self._log.read_text(encoding="utf-8")


def victim(
    folder: Path,
    log_file: Path,
    saved: Any,
    *,
    steps: int,
    resume: int = 0,
    full_after: int | None = None,
) -> None:
    """Train on one rank and save after every step; with `full_after` no file grows after it."""
    with log_file.open("w", encoding="utf-8") as told:
        os.dup2(told.fileno(), sys.stderr.fileno())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_RESTART_COUNT"):
        os.environ.pop(name, None)
    if resume:
        os.environ["SLURM_RESTART_COUNT"] = "1"
    torch.set_num_threads(1)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    part = Part(world=here, files=None)
    run = make_run(part, "ddp", folder, resume="requeue", config=CheckpointConfig(), keep=3)
    try:
        run.checkpoints.load(run.state)
        for number in range(1, steps + 1):
            if full_after is not None and number > full_after:
                run.checkpoints.wait()
                resource.setrlimit(resource.RLIMIT_FSIZE, (_FULL_BYTES, resource.RLIM_INFINITY))
            step = run.state.progress.step + 1
            run.train(step)
            run.checkpoints.save(run.state, step, loss=1.0)
            if number > 1:
                saved.release()
        run.checkpoints.wait()
    except WorkloadError as error:
        log(reason_of(error))
        end(error.exit_code)
