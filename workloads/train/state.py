"""What a training run is between two steps, and what the loop asks of whoever saves it.

Owns `Progress`, `TrainState` and the protocol `Checkpoints`. Writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from workloads.common.dist import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands between two train steps."""

    step: int
    """Train steps done."""
    position: int
    """Rows of the stream that all ranks together have consumed."""
    rows_per_step: int
    """Rows of one train step over all ranks; a resumption keeps it at any world size."""
    world_size: int
    fingerprint: str
    """Hash of what must not change across a resume: data, model and the settings of training."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """Everything that a checkpoint brings back."""

    model: Any
    """Without DDP's wrapper; plain tensors under DDP, DTensors under FSDP2."""
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    """Of fp16 runs only."""
    strategy: Literal["ddp", "fsdp"]
    world: World
    progress: Progress


class Checkpoints(Protocol):
    """Saves and restores a TrainState; every rank calls every method at the same point."""

    resumed_loss: float | None
    """Loss of the last step before the checkpoint that was loaded; None where none was."""

    def due(self, step: int) -> bool:
        """Whether the loop must save after `step` beyond its own schedule."""
        ...

    def load(self, state: TrainState) -> bool:
        """Fill `state` in place; False when there is nothing to resume from."""
        ...

    def save(self, state: TrainState, step: int, *, loss: float | None = None) -> None:
        """Save `state` as of `step`; may go on writing after it returns."""
        ...

    def wait(self) -> None:
        """Return when all that was saved is committed."""
        ...
