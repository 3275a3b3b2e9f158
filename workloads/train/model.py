"""The model that a run trains: adapters or all weights, and the loss it returns.

Owns how LoRA is attached (peft) and the sum of the loss over assistant tokens. Does not own data or
the optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from workloads.common.exit_codes import ConfigError
from workloads.common.models import load_model, torch_dtype
from workloads.data.chat_template import IGNORED
from workloads.data.packing import Batch
from workloads.train.config import TrainConfig


def build_model(model_dir: Path, config: TrainConfig, *, device: torch.device) -> Any:
    """Return the model ready to train: frozen base with fp32 adapters, or all weights."""
    model = load_model(model_dir, dtype=torch_dtype(config.dtype), device=device)
    model.config.use_cache = False
    if config.method == "lora":
        model = attach_lora(model, config)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        if config.method == "lora":
            # Else the first layer's input needs no gradient and its checkpoint is cut off.
            model.enable_input_require_grads()
    return model.train()


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
                target_modules="all-linear" if modules == ("all-linear",) else list(modules),
            ),
            autocast_adapter_dtype=True,
        )
    except ValueError as error:
        raise ConfigError(f"train.lora.target_modules {list(modules)}: {error}") from error


def num_parameters(model: nn.Module) -> tuple[int, int]:
    """Return (all, trained) numbers of weights."""
    return (
        sum(parameter.numel() for parameter in model.parameters()),
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
    )


def flops_per_token(model: Any, *, method: str) -> float:
    """Return the useful FLOPs of one trained token: 4N for LoRA, 6N for full training.

    N are the weights that multiply every token: the input embedding is a look-up and does not
    count, the output head does. Frozen weights need no weight gradient, which is 2N of the 6N.
    """
    total, trained = num_parameters(model)
    frozen_or_all = total - trained if method == "lora" else total
    if not model.config.tie_word_embeddings:
        frozen_or_all -= model.get_input_embeddings().weight.numel()
    return (4 if method == "lora" else 6) * frozen_or_all


class AssistantLoss(nn.Module):
    """Wraps a causal language model; forward gives the loss summed over the batch's label tokens.

    A sum, not a mean: micro batches and ranks hold different numbers of label tokens, and the mean
    of their means weighs tokens unequally.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> torch.Tensor:
        """Return the summed cross entropy in fp32."""
        # Logits only where some row has a label: on chats that saves most of the output head.
        positions = (batch.labels_BT != IGNORED).any(dim=0).nonzero().squeeze(1)
        if positions.numel() == 0:
            # One ignored position keeps every weight in the graph, as DDP waits for all of them.
            positions = torch.zeros(1, dtype=torch.long, device=batch.labels_BT.device)
        logits_BKV = self.model(
            input_ids=batch.input_ids_BT,
            position_ids=batch.position_ids_BT,
            attention_mask=batch.mask_B1TT,
            logits_to_keep=positions,
            use_cache=False,
        ).logits
        labels_BK = batch.labels_BT[:, positions]
        return cross_entropy(
            logits_BKV.float().flatten(0, 1),
            labels_BK.flatten(),
            ignore_index=IGNORED,
            reduction="sum",
        )
