"""Liger's fused kernels for norms, rotary embeddings and gated MLPs, where they are importable."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch

from workloads.common.log import log
from workloads.train.config import TrainConfig


def use_liger(model: Any, config: TrainConfig, device: torch.device) -> Any:
    """Return `model` with Liger's kernels, where the recipe wants them and this device has them."""
    if config.liger == "off" or device.type != "cuda" or find_spec("liger_kernel") is None:
        return model
    from liger_kernel.transformers.monkey_patch import (  # pyright: ignore[reportMissingImports]
        MODEL_TYPE_TO_APPLY_LIGER_FN,
        _apply_liger_kernel_to_instance,
    )

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    kind = base.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        log(f"liger has no kernels for {kind}: going on with torch's")
        return model
    # The loss is ours: it takes positions with labels only, and may go in chunks.
    _apply_liger_kernel_to_instance(
        model=base, cross_entropy=False, fused_linear_cross_entropy=False
    )
    log(f"liger: fused kernels of {kind}")
    return model
