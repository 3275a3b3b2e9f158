"""Settings of the section `train.checkpoint`: both kinds, and when a rank counts as lost."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.common.recipe import require


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How state is saved, kept and taken up again; how often is train.checkpoint_every."""

    background: bool = True
    """Whether files are written while training goes on, from one copy in host memory."""
    keep_best: bool = True
    """Whether the committed checkpoint with the lowest loss stays beyond train.keep_last."""
    elastic_every: int = 0
    """Train steps between elastic checkpoints; 0: only before the job changes its size."""
    same_world_size_only: bool = False
    """Whether a sharded checkpoint of another world size is refused instead of resharded."""
    timeout_s: int = 600
    """Seconds after which a rank that is not heard of is lost, and a step that stands is hung."""

    def __post_init__(self) -> None:
        require(self.elastic_every >= 0, f"elastic_every: got {self.elastic_every}, expected >= 0")
        require(self.timeout_s >= 10, f"timeout_s: got {self.timeout_s}, expected >= 10")
