"""How a model is spread over GPUs.

Owns the strategies that seed 004 names and the degrees of each. Which of them this project can run
is `TRAINED`, which a test compares with the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cost.size.errors import SizeError


class Strategy(StrEnum):
    """What is divided between GPUs."""

    DDP = "ddp"
    ZERO1 = "zero-1"
    ZERO2 = "zero-2"
    FSDP = "fsdp"
    OFFLOAD = "offload"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    THREE_D = "3d"


ABOUT: Final = {
    Strategy.DDP: "every GPU has all of it and other rows",
    Strategy.ZERO1: "optimizer state divided",
    Strategy.ZERO2: "optimizer state and gradients divided",
    Strategy.FSDP: "weights, gradients and optimizer state divided (ZeRO-3)",
    Strategy.OFFLOAD: "as fsdp, kept in the memory of the host",
    Strategy.TENSOR: "each layer divided inside a node",
    Strategy.PIPELINE: "layers divided into stages",
    Strategy.THREE_D: "tensor in a node, pipeline over nodes, rows over the rest",
}
TRAINED: Final = (Strategy.DDP, Strategy.FSDP, Strategy.OFFLOAD)
"""Strategies that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A strategy with its degrees; their product is the number of GPUs."""

    strategy: Strategy = Strategy.DDP
    data: int = 1
    """GPUs that see other rows: the replicas, and what ZeRO divides by."""
    tensor: int = 1
    pipeline: int = 1

    def __post_init__(self) -> None:
        problems = [
            f"{name}: got {getattr(self, name)} GPUs, expected 1 or more"
            for name in ("data", "tensor", "pipeline")
            if getattr(self, name) < 1
        ]
        if problems:
            raise SizeError("\n".join(problems))

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.data * self.tensor * self.pipeline

    @property
    def label(self) -> str:
        """The strategy and its degrees, such as `3d (tensor 8 x pipeline 2 x data 1)`."""
        if self.strategy in (Strategy.TENSOR, Strategy.PIPELINE, Strategy.THREE_D):
            parts = [f"tensor {self.tensor}"] if self.tensor > 1 else []
            parts += [f"pipeline {self.pipeline}"] if self.pipeline > 1 else []
            parts += [f"data {self.data}"]
            return f"{self.strategy} ({' x '.join(parts)})"
        return f"{self.strategy} x {self.data}"
