"""Which attention a run uses, and what of a batch it needs.

sdpa: a boolean mask of documents. flex: the same as a block mask. flash: documents by their
position ids, rows laid end to end. Nothing is built on a worker: flash runs where it is importable.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Literal

import torch

from workloads.train.config import TrainConfig

Kind = Literal["sdpa", "flex", "flash"]
IMPLEMENTATIONS: dict[Kind, str] = {
    "sdpa": "sdpa",
    "flex": "flex_attention",
    "flash": "flash_attention_2",
}


def choose(config: TrainConfig, device: torch.device) -> Kind:
    """Return the attention of this run on `device`."""
    if config.attention != "auto":
        return config.attention
    # FlashAttention 2 has no kernels for fp32.
    usable = device.type == "cuda" and config.dtype != "fp32" and find_spec("flash_attn")
    return "flash" if usable else "sdpa"


def inputs(kind: Kind, batch: Any) -> dict[str, Any]:
    """Return the model's arguments for `batch`, documents kept apart."""
    if kind == "flash":
        return {
            "input_ids": batch.input_ids_BT.reshape(1, -1),
            "position_ids": batch.position_ids_BT.reshape(1, -1),
            "attention_mask": None,
        }
    mask = block_mask(batch.document_BT) if kind == "flex" else batch.mask_B1TT
    return {
        "input_ids": batch.input_ids_BT,
        "position_ids": batch.position_ids_BT,
        "attention_mask": mask,
    }


def block_mask(document_BT: torch.Tensor) -> Any:
    """Return FlexAttention's mask: causal inside each document."""
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b: Any, h: Any, query: Any, key: Any) -> Any:
        del h
        return (query >= key) & (document_BT[b, query] == document_BT[b, key])

    batch, length = document_BT.shape
    return create_block_mask(seen, batch, None, length, length, device=document_BT.device.type)
