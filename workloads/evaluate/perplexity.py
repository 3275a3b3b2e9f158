"""Perplexity on the assistant's tokens of held-out rows, weighted by tokens, not by rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from workloads.data.chat_template import Example
from workloads.data.packing import collate, pack
from workloads.train.model import AssistantLoss


@torch.inference_mode()
def loss_sum(model: Any, examples: Sequence[Example], *, pad_id: int) -> tuple[float, int]:
    """Return the summed negative log-likelihood in nats and the number of tokens it is over."""
    longest = max(len(example.input_ids) for example in examples)
    loss = AssistantLoss(model)
    total, num_tokens = 0.0, 0
    # Packed rows, as in training; documents do not see each other.
    for packed in pack(examples, sequence_length=max(longest, 512)):
        batch = collate([packed], pad_id=pad_id).to(model.device)
        total += float(loss(batch))
        num_tokens += batch.num_label_tokens
    return total, num_tokens
