"""Low-rank adapters on a frozen base, through peft: LoRA, and DoRA on request."""

from __future__ import annotations

from typing import Any

import torch

from workloads.common.exit_codes import ConfigError
from workloads.train.config import TrainConfig

_TASK_TYPES = {
    "causal_lm": "CAUSAL_LM",
    "text_classification": "SEQ_CLS",
    "text_to_text": "SEQ_2_SEQ_LM",
    # peft has no type for images: the plain wrapper passes every argument on.
    "image_classification": None,
}
_HEAD = "classifier"
"""The new layer of a classifier, which has nothing to adapt: it is trained whole."""


def attach_lora(model: Any, config: TrainConfig) -> Any:
    """Return `model` frozen, with trainable adapters in fp32; seeded by the recipe."""
    import peft

    modules = config.lora.target_modules
    is_classifier = config.task in ("text_classification", "image_classification")
    head = [_HEAD] if is_classifier else None
    torch.manual_seed(config.seed)
    try:
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                task_type=_TASK_TYPES[config.task],
                r=config.lora.rank,
                lora_alpha=config.lora.alpha,
                lora_dropout=config.lora.dropout,
                use_dora=config.lora.dora,
                target_modules="all-linear" if modules == ("all-linear",) else list(modules),
                modules_to_save=head,
                exclude_modules=head,
            ),
            autocast_adapter_dtype=True,
        )
    except ValueError as error:
        raise ConfigError(f"train.lora.target_modules {list(modules)}: {error}") from error
