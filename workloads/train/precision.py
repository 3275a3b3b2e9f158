"""Number types of a run: which weights are kept how, autocast, and the loss scale of fp16.

bf16: weights in bf16 and adapters in fp32; the optimizer keeps fp32 copies of trained bf16 weights.
Shards of FSDP2 are fp32 where they are trained, and gathered in bf16.
fp16: frozen weights in fp16, trained ones in fp32; a forward pass under autocast, and a loss scale,
as fp16 has no room for small gradients. fp32: all in fp32.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from workloads.common.models import torch_dtype
from workloads.train.config import TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """What a forward pass runs in."""

    dtype: torch.dtype
    device: torch.device
    scaler: torch.amp.GradScaler | None

    def forward(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a forward pass: autocast for fp16, else nothing."""
        if self.dtype == torch.float16:
            return torch.autocast(self.device.type, dtype=torch.float16)
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of `loss`, scaled for fp16."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the scale off the gradients, before they are clipped."""
        if self.scaler:
            self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Update the weights; False when fp16 gradients overflowed and the step was left out."""
        if not self.scaler:
            optimizer.step()
            return True
        before = self.scaler.get_scale()
        self.scaler.step(optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before


def build_precision(config: TrainConfig, device: torch.device) -> Precision:
    """Return the number types of a run."""
    scaler = torch.amp.GradScaler(device.type) if config.dtype == "fp16" else None
    return Precision(dtype=torch_dtype(config.dtype), device=device, scaler=scaler)


def base_dtype(config: TrainConfig, *, sharded: bool = False) -> torch.dtype:
    """Return the type in which the model is loaded."""
    # Under autocast, and in FSDP2's shards, trained weights are their own fp32 copy.
    if config.method == "full" and (config.dtype == "fp16" or sharded):
        return torch.float32
    return torch_dtype(config.dtype)
