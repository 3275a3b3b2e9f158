"""The 4-bit base of QLoRA: nf4 with its scales quantised once more, through bitsandbytes.

Order of seed 000: load the raw model in 4 bits, prepare it, attach adapters, train.
"""

from __future__ import annotations

import logging
from typing import Any

import torch


def four_bit_options(dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of from_pretrained that load a base in 4 bits."""
    from transformers import BitsAndBytesConfig

    quiet()
    return {
        "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    }


def quiet() -> None:
    """Silence what bitsandbytes says on CPUs: that a hub has faster kernels."""
    logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)


def prepare(model: Any) -> Any:
    """Return the quantised model frozen; norms stay in 16 bits, as they compute in fp32 anyway."""
    return model.requires_grad_(False)
