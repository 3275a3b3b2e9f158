"""A causal language model ready to train, and the loss that it returns.

Owns the order: load (in 4 bits for qlora), adapters, checkpointing of activations. Does not own
data, ranks or the optimizer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from workloads.common.models import load_model
from workloads.train import attention, quantize
from workloads.train.adapters import attach_lora
from workloads.train.config import TrainConfig
from workloads.train.loss import IGNORED, chunked_loss, is_plain_head, summed_loss
from workloads.train.precision import base_dtype

__all__ = ["AssistantLoss", "attach_lora", "build_model", "flops_per_token", "num_parameters"]


def build_model(
    model_dir: Path, config: TrainConfig, *, device: torch.device, sharded: bool = False
) -> Any:
    """Return the model ready to train: frozen base with fp32 adapters, or all weights."""
    dtype = base_dtype(config, sharded=sharded)
    options = _options(config, device)
    if config.method == "qlora":
        options |= quantize.four_bit_options(dtype)
    return prepare_model(load_model(model_dir, dtype=dtype, device=device, **options), config)


def build_empty_model(model_dir: Path, config: TrainConfig, *, device: torch.device) -> Any:
    """Return the same model without memory for its weights, to be divided between ranks."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = AutoConfig.from_pretrained(model_dir)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            shape, dtype=base_dtype(config, sharded=True), **_options(config, device)
        )
        return prepare_model(model, config)


def _options(config: TrainConfig, device: torch.device) -> dict[str, Any]:
    return {"attn_implementation": attention.IMPLEMENTATIONS[attention.choose(config, device)]}


def prepare_model(model: Any, config: TrainConfig) -> Any:
    """Return a loaded model with adapters and checkpointing of activations, in train mode."""
    model.config.use_cache = False
    if config.method == "qlora":
        model = quantize.prepare(model)
    if config.has_adapters:
        model = attach_lora(model, config)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        if config.has_adapters:
            # Else the first layer's input needs no gradient and its checkpoint is cut off.
            model.enable_input_require_grads()
    return model.train()


def num_parameters(model: nn.Module) -> tuple[int, int]:
    """Return (all, trained) numbers of weights; a 4-bit weight counts as one."""
    sizes = [(_numel(weight), weight.requires_grad) for weight in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)


def _numel(weight: Any) -> int:
    state = getattr(weight, "quant_state", None)
    return int(torch.Size(state.shape).numel()) if state is not None else weight.numel()


def flops_per_token(model: Any, *, method: str) -> float:
    """Return the useful FLOPs of one trained token: 4N for adapters, 6N for full training.

    N are the weights that multiply every token: the input embedding is a look-up and does not
    count, the output head does. Frozen weights need no weight gradient, which is 2N of the 6N.
    """
    total, trained = num_parameters(model)
    frozen_or_all = total if method == "full" else total - trained
    embedding = model.get_input_embeddings()
    is_tied = getattr(model.config, "tie_word_embeddings", False)
    if isinstance(embedding, nn.Embedding) and not is_tied:
        frozen_or_all -= embedding.weight.numel()
    return (6 if method == "full" else 4) * frozen_or_all


class AssistantLoss(nn.Module):
    """Wraps a causal language model; forward gives the loss summed over the batch's label tokens.

    A sum, not a mean: micro batches and ranks hold different numbers of label tokens, and the mean
    of their means weighs tokens unequally.
    """

    def __init__(
        self, model: Any, *, attention: attention.Kind = "sdpa", chunk_tokens: int | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.attention: attention.Kind = attention
        self.chunk_tokens = chunk_tokens

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the summed cross entropy in fp32."""
        arguments = attention.inputs(self.attention, batch)
        labels_BT = batch.labels_BT.reshape(arguments["input_ids"].shape)
        # Logits only where there is a label: on chats that saves most of the output head.
        learned_BT = labels_BT != IGNORED
        if not learned_BT.any():
            # One ignored position keeps every weight in the graph, as DDP waits for all of them.
            learned_BT[0, 0] = True
        labels_N = labels_BT[learned_BT]
        if self.chunk_tokens is not None:
            base = self.model.get_base_model() if hasattr(self.model, "peft_config") else self.model
            head = base.get_output_embeddings()
            if is_plain_head(head, base.config):
                hidden_BTH = base.get_decoder()(**arguments, use_cache=False).last_hidden_state
                return chunked_loss(
                    hidden_BTH[learned_BT], labels_N, head, chunk_tokens=self.chunk_tokens
                )
        logits_NV = self.model(**arguments, logits_to_keep=learned_BT, use_cache=False).logits
        return summed_loss(logits_NV, labels_N)
