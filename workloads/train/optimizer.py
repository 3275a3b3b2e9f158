"""AdamW: torch's own where every trained weight is fp32, else one with fp32 copies of the weights.

At lr 2e-5 the update of a bf16 weight is below its rounding step, so training bf16 weights in place
loses most updates; the fp32 copy keeps them (16 bytes per weight in all: 2 + 2 gradient + 12).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch


def build_optimizer(
    trained: Sequence[torch.Tensor], *, lr: float, weight_decay: float
) -> torch.optim.Optimizer:
    """Return AdamW over `trained`: torch's fused one, or ours where a weight has 16 bits."""
    if all(weight.dtype == torch.float32 for weight in trained):
        return torch.optim.AdamW(trained, lr=lr, weight_decay=weight_decay, fused=True)
    return AdamW(trained, lr=lr, weight_decay=weight_decay)


class AdamW(torch.optim.Optimizer):
    """Decoupled weight decay Adam, one weight at a time so that scratch memory stays small."""

    def __init__(
        self,
        params: Any,
        *,
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Apply one update; every weight with a gradient moves."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad.float(), group)

    def _update(self, weight: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(weight, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(weight, dtype=torch.float32)
            if weight.dtype != torch.float32:
                state["weight_fp32"] = weight.float()
        state["step"] += 1
        master = state.get("weight_fp32", weight)
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bias1, bias2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        root = (state["exp_avg_sq"].sqrt() / math.sqrt(bias2)).add_(group["eps"])
        master.mul_(1 - group["lr"] * group["weight_decay"])
        master.addcdiv_(state["exp_avg"], root, value=-group["lr"] / bias1)
        if master is not weight:
            weight.copy_(master)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state with its own types; torch would cast it to the weight's type."""
        state_dict = {**state_dict, "state": dict(state_dict["state"])}
        kept = state_dict.pop("state")
        super().load_state_dict({**state_dict, "state": {}})
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for index, values in kept.items():
            weight = weights[index]
            self.state[weight] = {
                name: value.to(weight.device) if isinstance(value, torch.Tensor) else value
                for name, value in values.items()
            }
