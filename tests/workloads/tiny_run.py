"""A tiny run with the product's own order of rows, checkpoints and optimizer, and no recipe.

Its model is known whole, so tests look at what a checkpoint holds; `victim` is a process of it that
tests kill, or that meets a full disk. Also shipped to the Slurm of tests/local/test_faults.py.
"""

from __future__ import annotations

import os
import random
import resource
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workloads.common.dist import World
from workloads.common.exit_codes import WorkloadError, reason_of
from workloads.common.log import log
from workloads.job import end
from workloads.recipes.train import CheckpointConfig
from workloads.train.checkpoint import FolderCheckpoints
from workloads.train.inputs import StopRequest
from workloads.train.loop import Progress, Stream, TrainState
from workloads.train.run_folder import RunFolder
from workloads.train.strategy import build_optimizer, settle

NUM_ROWS, ROWS_PER_STEP = 16, 4
_VOCABULARY, _WIDTH, _LENGTH = 37, 24, 12
_FULL_BYTES = 4096
"""Bytes that a file has at most on the disk that is full."""


@dataclass(slots=True, kw_only=True)
class Run:
    """A tiny run at one world size."""

    state: TrainState
    module: Any
    checkpoints: FolderCheckpoints

    def train(self, last_step: int, *, save_at: int | None = None) -> dict[int, float]:
        """Trains up to `last_step`; returns the loss of each step, counted from 1."""
        losses: dict[int, float] = {}
        while self.state.progress.step < last_step:
            loss = self._step()
            step = self.state.progress.step
            losses[step] = loss
            if step == save_at:
                self.checkpoints.save(self.state, step, loss=loss)
        self.checkpoints.wait()
        return losses

    def _step(self) -> float:
        progress, here = self.state.progress, self.state.world
        micro_batches = stream().micro_batches(
            progress.position,
            rank=here.rank,
            world_size=here.world_size,
            micro_batch_size=1,
            num_rows=progress.rows_per_step,
        )
        total = 0.0
        for rows in micro_batches:
            tokens, weight = _batch(rows, here.device)
            loss = self.module(tokens) * weight
            # The wrappers average over ranks; the sum over ranks is wanted.
            (loss * here.world_size / progress.rows_per_step).backward()
            total += float(loss.detach())
        (loss_sum,) = here.sum([total])
        self.state.optimizer.step()
        self.state.optimizer.zero_grad(set_to_none=True)
        self.state.progress = replace(
            progress, step=progress.step + 1, position=progress.position + progress.rows_per_step
        )
        return loss_sum / progress.rows_per_step


class _TinyModel(nn.Module):
    """Predicts the next token from the one before; the loss is summed over a row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(_VOCABULARY, _WIDTH)
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(2))
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the mean loss of one row."""
        hidden = self.embed(tokens[:-1])
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return cross_entropy(self.head(hidden), tokens[1:])


def stream() -> Stream:
    """Returns the rows of the proof: numbers that stand for token sequences."""
    return Stream(packs=range(NUM_ROWS), seed=5, length=lambda row: 0)


def _batch(rows: Sequence[int], device: torch.device) -> tuple[torch.Tensor, float]:
    """Tokens of a micro batch of one row; a rank that came out short weighs it with 0."""
    numbers = random.Random(rows[0] if rows else 0)
    tokens = [numbers.randrange(_VOCABULARY) for _ in range(_LENGTH)]
    return torch.tensor(tokens, device=device), 1.0 if rows else 0.0


def make_run(
    here: World,
    folder: Path,
    *,
    resume: str,
    config: CheckpointConfig,
    keep: int,
    stop: StopRequest | None = None,
) -> Run:
    """Returnss a run before its first step, under DDP where there are several ranks."""
    torch.manual_seed(3)
    model = _TinyModel().to(here.device)
    module: Any = nn.parallel.DistributedDataParallel(model) if here.is_distributed else model

    def blank_loss() -> torch.Tensor:
        tokens, weight = _batch([], here.device)
        return module(tokens) * weight

    settle(module, blank_loss)
    state = TrainState(
        model=model,
        optimizer=build_optimizer([*model.parameters()], lr=0.01, weight_decay=0.1),
        scaler=torch.amp.GradScaler(enabled=False),
        strategy="ddp",
        world=here,
        progress=Progress(
            step=0,
            position=0,
            rows_per_step=ROWS_PER_STEP,
            world_size=here.world_size,
            fingerprint="proof",
        ),
    )
    runs = RunFolder(
        chkpt=folder, elastic=folder, resume=resume, job="proof", own_id="run", name="run"
    )
    checkpoints = FolderCheckpoints(
        folder=runs,
        world=here,
        config=config,
        keep_last=keep,
        stop=StopRequest() if stop is None else stop,
    )
    return Run(state=state, module=module, checkpoints=checkpoints)


class Victim:
    """A process of one rank that saves after every step."""

    def __init__(self, folder: Path, **options: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / f"{uuid.uuid4().hex}.log"
        # Not where this file is shipped to without the other tests.
        from tests.workloads.ranks import fork_server

        context = fork_server()
        self.saved = context.Semaphore(0)
        self.process = context.Process(
            target=victim, args=(folder, self._log, self.saved), kwargs=options
        )
        self.process.start()

    def end(self) -> tuple[int, str]:
        """Waits; returns its exit code and what it told."""
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
    """Trains on one rank and saves after every step; with `full_after` no file grows after it."""
    with log_file.open("w", encoding="utf-8") as told:
        os.dup2(told.fileno(), sys.stderr.fileno())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_RESTART_COUNT"):
        os.environ.pop(name, None)
    if resume:
        os.environ["SLURM_RESTART_COUNT"] = "1"
    torch.set_num_threads(1)
    here = World(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"))
    run = make_run(here, folder, resume="requeue", config=CheckpointConfig(), keep=3)
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
