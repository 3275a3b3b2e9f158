"""The model whose tokens are counted: a plain causal decoder with random weights.

Speed does not depend on the weights. The default shape is that of seed 001's benchmark.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from workloads.accept.config import TrainingConfig


class Block(nn.Module):
    """Attention and a two-layer MLP, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        """Return the block's output, of the same shape."""
        batch, length, width = x_BTD.shape
        qkv = self.qkv(self.norm_attention(x_BTD))
        q, k, v = (
            each.view(batch, length, self.heads, -1).transpose(1, 2)
            for each in qkv.split(width, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x_BTD + self.mlp(self.norm_mlp(x_BTD))


class Decoder(nn.Module):
    """Embeddings, blocks and a head; returns the loss of the next token."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.sequence, config.width)
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, tokens_BT: torch.Tensor, labels_BT: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy over all positions."""
        x_BTD = self.tokens(tokens_BT) + self.positions.weight[: tokens_BT.shape[1]]
        for block in self.blocks:
            x_BTD = block(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD))
        return functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten())
