"""Loss on the assistant's tokens of held-out rows, row by row: what perplexity is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from workloads.data.chat_template import IGNORED, Example
from workloads.evaluate.generate import batches

MAX_BATCH = 16
MAX_TOKENS = 2048
"""Padded tokens of a batch: with a vocabulary of 150,000 their logits in fp32 are 1.2 GB."""


@torch.inference_mode()
def row_losses(
    model: Any, examples: Sequence[Example], *, pad_id: int
) -> Iterator[dict[int, tuple[float, int]]]:
    """Yield, batch by batch, each row's negative log-likelihood in nats and its label tokens."""
    lengths = [len(example.input_ids) for example in examples]
    for bucket in batches(lengths, batch_size=MAX_BATCH):
        rows_a_pass = max(1, MAX_TOKENS // lengths[bucket[0]])
        for first in range(0, len(bucket), rows_a_pass):
            rows = bucket[first : first + rows_a_pass]
            yield dict(zip(rows, _losses(model, [examples[i] for i in rows], pad_id), strict=True))


def _losses(model: Any, examples: Sequence[Example], pad_id: int) -> list[tuple[float, int]]:
    length = max(len(example.input_ids) for example in examples)
    input_ids_BT = torch.full((len(examples), length), pad_id)
    labels_BT = torch.full_like(input_ids_BT, IGNORED)
    mask_BT = torch.zeros_like(input_ids_BT)
    for row, example in enumerate(examples):
        size = len(example.input_ids)
        input_ids_BT[row, :size] = torch.tensor(example.input_ids)
        # Position t predicts token t + 1.
        labels_BT[row, : size - 1] = torch.tensor(example.labels[1:], dtype=torch.long)
        mask_BT[row, :size] = 1
    counts = (labels_BT != IGNORED).sum(1).tolist()
    positions = (labels_BT != IGNORED).any(0).nonzero().squeeze(1)
    if not len(positions):
        return [(0.0, 0)] * len(examples)
    device = model.device
    # Padding is on the right, where causal attention never looks, so positions count from 0.
    logits_BKV = model(
        input_ids=input_ids_BT.to(device),
        attention_mask=mask_BT.to(device),
        logits_to_keep=positions.to(device),
        use_cache=False,
    ).logits
    losses_BK = torch.nn.functional.cross_entropy(
        logits_BKV.float().transpose(1, 2),
        labels_BT[:, positions].to(device),
        ignore_index=IGNORED,
        reduction="none",
    )
    return list(zip(losses_BK.double().sum(1).tolist(), counts, strict=True))
