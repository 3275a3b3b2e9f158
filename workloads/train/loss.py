"""Cross entropy over a vocabulary, summed over label tokens, in bounded memory.

The logits of a 4,096-token row over 152,064 tokens take 2.5 GB in fp32, three times with their
gradient. In chunks they exist one chunk at a time: the gradient of the hidden states (and of the
head, where it is trained) is made in the forward pass, so nothing is computed twice.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn.functional import cross_entropy

IGNORED = -100


def summed_loss(logits_NV: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy in fp32, summed over labels that are not IGNORED."""
    return cross_entropy(logits_NV.float(), labels_N, ignore_index=IGNORED, reduction="sum")


def chunked_loss(
    hidden_NH: torch.Tensor, labels_N: torch.Tensor, head: nn.Module, *, chunk_tokens: int
) -> torch.Tensor:
    """Return the summed loss of `head(hidden)`; at most `chunk_tokens` rows of logits exist."""
    weight, bias = head.weight, getattr(head, "bias", None)
    return _ChunkedLoss.apply(hidden_NH, labels_N, weight, bias, chunk_tokens)


def is_plain_head(head: Any, config: Any) -> bool:
    """True where logits are a linear layer's output as it is: chunks then equal the whole.

    Not so with adapters on the head, and where the model caps or scales logits after it.
    """
    text = config.get_text_config()
    as_it_is = all(getattr(text, name, None) in (None, 1) for name in _AFTER_THE_HEAD)
    return type(head) is nn.Linear and as_it_is


# What models of transformers 5 do to logits in their own forward: Gemma, Granite, Cohere, Falcon,
# Muse (modeling_*.py, read 2026-11-21).
_AFTER_THE_HEAD: Final = (
    "final_logit_softcapping",
    "logits_scaling",
    "logit_scale",
    "lm_head_multiplier",
    "output_multiplier",
)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        labels_N: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        chunk_tokens: int,
    ) -> torch.Tensor:
        kind = hidden_NH.device.type
        # Autocast does not reach into a Function: the product runs in the type it would have used.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        weight = weight_VH if dtype is None else weight_VH.to(dtype)
        needs_hidden, _, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden_NH) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VH, dtype=torch.float32) if needs_weight else None
        grad_bias = (
            torch.zeros_like(bias_V, dtype=torch.float32)
            if needs_bias and bias_V is not None
            else None
        )
        total = torch.zeros((), dtype=torch.float32, device=hidden_NH.device)
        for start in range(0, hidden_NH.shape[0], chunk_tokens):
            part = slice(start, start + chunk_tokens)
            hidden, labels = hidden_NH[part].to(weight.dtype), labels_N[part]
            logits = hidden @ weight.t()
            if bias_V is not None:
                logits += bias_V.to(logits.dtype)
            logits = logits.float()
            learned = labels != IGNORED
            target = labels.where(learned, 0)[:, None]
            log_total = logits.logsumexp(-1)
            picked = logits.gather(1, target)[:, 0]
            total += ((log_total - picked) * learned).sum()
            # In place from here: softmax minus one at the label, nothing where it is ignored.
            gradient = logits.sub_(log_total[:, None]).exp_()
            gradient.scatter_add_(1, target, torch.full_like(target, -1, dtype=gradient.dtype))
            gradient *= learned[:, None]
            low = gradient.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = (low @ weight).to(grad_hidden.dtype)
            if grad_weight is not None:
                grad_weight += low.t() @ hidden
            if grad_bias is not None:
                grad_bias += gradient.sum(0)
        ctx.save_for_backward(
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None or bias_V is None else grad_bias.to(bias_V.dtype),
        )
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> Any:
        (scale,) = grad_outputs
        grads = [
            None if grad is None else grad * scale.to(grad.dtype) for grad in ctx.saved_tensors
        ]
        return grads[0], None, grads[1], grads[2], None
