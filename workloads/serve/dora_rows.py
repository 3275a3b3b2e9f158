"""DoRA for some rows of a batch: the tuned rows of each layer are scaled and get their product.

DoRA's weight is m (W + s B A) / |W + s B A|, row by row (Liu et al. 2024, arXiv:2402.09353). While
serving, m / |W + s B A| does not change: it is computed once, and a tuned row costs what LoRA
costs. peft's own forward makes the whole weight anew for each pass, and takes no mixed batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from workloads.common.exit_codes import DataError


def split_rows(layer: Any, adapter: str, tuned: Callable[[], Sequence[int] | None]) -> None:
    """Let `layer` adapt only the rows that `tuned` returns before each pass; None: all of them."""
    base = layer.base_layer
    if not isinstance(base, torch.nn.Linear):
        raise DataError(
            f"DoRA on a {type(base).__name__} layer is not served beside its base; merge it "
            "(train.export merged) and serve that with --merged"
        )
    scaling = layer.scaling[adapter]
    down, up = layer.lora_A[adapter], layer.lora_B[adapter]
    factor_O = _factor(layer, adapter)

    def forward(x_BTI: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out_BTO = base(x_BTI)
        rows = tuned()
        if rows is None:
            return adapted(x_BTI, out_BTO)
        if rows:
            out_BTO[rows] = adapted(x_BTI[rows], out_BTO[rows])
        return out_BTO

    def adapted(x_BTI: torch.Tensor, out_BTO: torch.Tensor) -> torch.Tensor:
        product_BTO = up(down(x_BTI.to(down.weight.dtype))) * scaling
        if base.bias is None:
            return (factor_O * (out_BTO + product_BTO)).to(out_BTO.dtype)
        plain_BTO = out_BTO - base.bias
        return (factor_O * (plain_BTO + product_BTO) + base.bias).to(out_BTO.dtype)

    layer.forward = forward


def _factor(layer: Any, adapter: str) -> torch.Tensor:
    """Return m / |W + s B A| of each output, with the norm in fp32."""
    weight_OI = layer.base_layer.weight.detach()
    up_OR, down_RI = (each[adapter].weight.detach() for each in (layer.lora_B, layer.lora_A))
    product_OI = up_OR.float() @ down_RI.float()
    norm_O = (weight_OI.float() + layer.scaling[adapter] * product_OI).norm(dim=1)
    magnitude_O = layer.lora_magnitude_vector[adapter].weight.detach().float()
    return (magnitude_O / norm_O).to(weight_OI.dtype)
