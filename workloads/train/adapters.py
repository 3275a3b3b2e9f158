"""Low-rank adapters on a frozen base, through peft: LoRA, and DoRA on request."""

from __future__ import annotations

from typing import Any

import torch

from workloads.common.exit_codes import ConfigError
from workloads.train.config import TrainConfig


def attach_lora(model: Any, config: TrainConfig) -> Any:
    """Return `model` frozen, with trainable adapters in fp32; seeded by the recipe."""
    import peft

    modules = config.lora.target_modules
    torch.manual_seed(config.seed)
    try:
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                task_type="CAUSAL_LM",
                r=config.lora.rank,
                lora_alpha=config.lora.alpha,
                lora_dropout=config.lora.dropout,
                use_dora=config.lora.dora,
                target_modules="all-linear" if modules == ("all-linear",) else list(modules),
            ),
            autocast_adapter_dtype=True,
        )
    except ValueError as error:
        raise ConfigError(f"train.lora.target_modules {list(modules)}: {error}") from error
