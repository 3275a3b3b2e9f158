"""A tiny run with the real order of rows, checkpoints and optimizer: what the proof trains."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from workloads.common.dist import World
from workloads.train.checkpoint import FolderCheckpoints
from workloads.train.checkpoint_config import CheckpointConfig
from workloads.train.optimizer import AdamW
from workloads.train.order import Stream
from workloads.train.run_folder import RunFolder
from workloads.train.signals import StopRequest
from workloads.train.state import Progress, TrainState
from workloads.train.strategy import settle

Spread = Literal["ddp", "fsdp"]
Outcome = Literal["PASS", "FAIL", "NOT RUN"]
NUM_ROWS, ROWS_PER_STEP, NUM_STEPS, SAVED_STEP = 16, 4, 8, 3
_VOCABULARY, _WIDTH, _LENGTH = 37, 24, 12
FINGERPRINT = "proof"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the proof."""

    what: str
    outcome: Outcome
    detail: str


@dataclass(slots=True, kw_only=True)
class Run:
    """A tiny run at one world size."""

    state: TrainState
    module: Any
    checkpoints: FolderCheckpoints

    def train(self, last_step: int, *, save_at: int | None = None) -> dict[int, float]:
        """Train up to `last_step`; return the loss of each step, counted from 1."""
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

    def forward(self, tokens_T: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of one row."""
        hidden_TD = self.embed(tokens_T[:-1])
        for layer in self.layers:
            hidden_TD = hidden_TD + torch.tanh(layer(hidden_TD))
        return cross_entropy(self.head(hidden_TD), tokens_T[1:])


def stream() -> Stream:
    """Return the rows of the proof: numbers that stand for token sequences."""
    return Stream(packs=range(NUM_ROWS), seed=5, length=lambda row: 0)


def _batch(rows: Sequence[int], device: torch.device) -> tuple[torch.Tensor, float]:
    """Tokens of a micro batch of one row; a rank that came out short weighs it with 0."""
    numbers = random.Random(rows[0] if rows else 0)
    tokens = [numbers.randrange(_VOCABULARY) for _ in range(_LENGTH)]
    return torch.tensor(tokens, device=device), 1.0 if rows else 0.0


def make_run(
    part: Part,
    spread: Spread,
    folder: Path,
    *,
    resume: str,
    config: CheckpointConfig,
    keep: int,
    stop: StopRequest | None = None,
) -> Run:
    """Return a run before its first step."""
    here = part.world
    torch.manual_seed(3)
    model = _TinyModel().to(here.device)
    module: Any = model
    if spread == "fsdp":
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        assert here.group is not None
        mesh = DeviceMesh.from_group(here.group, here.device.type)
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif here.is_distributed:
        module = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[here.local_rank] if here.device.type == "cuda" else None,
            process_group=here.group,
        )

        def blank_loss() -> torch.Tensor:
            tokens, weight = _batch([], here.device)
            return module(tokens) * weight

        settle(module, blank_loss)
    state = TrainState(
        model=model,
        optimizer=AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
        scaler=None,
        strategy=spread,
        world=here,
        progress=Progress(
            step=0,
            position=0,
            rows_per_step=ROWS_PER_STEP,
            world_size=here.world_size,
            fingerprint=FINGERPRINT,
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
        group=part.files,
    )
    return Run(state=state, module=module, checkpoints=checkpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some of the ranks, as a run sees them."""

    world: World
    files: Any
    """Their gloo group for checkpoints."""


def part_of(here: World, size: int) -> Part | None:
    """Return the first `size` ranks; None on the others. Every rank calls it."""
    if not here.is_distributed:
        return Part(world=here, files=None)
    ranks = list(range(size))
    group, files = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
    if here.rank >= size:
        return None
    return Part(world=replace(here, world_size=size, group=group), files=files)
