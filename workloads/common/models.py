"""Loading a tokenizer and a causal language model from a folder, offline.

Owns the options that every job shares: no network, SDPA attention, the type of the weights.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import DataError

if TYPE_CHECKING:
    import torch


def load_tokenizer(model_dir: Path) -> Any:
    """Return the tokenizer in `model_dir`; one without a padding token pads with its eos."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
    except (OSError, ValueError) as error:
        raise DataError(f"{model_dir}: tokenizer cannot be loaded: {error}") from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(model_dir: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the model in `model_dir` with weights of `dtype` on `device`, in eval mode."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    # peft asks transformers for a property that transformers has renamed; not the user's business.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=dtype, attn_implementation="sdpa", use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{model_dir}: model cannot be loaded: {error}") from error
    return model.to(device).eval()


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type for a recipe's `bf16` or `fp32`."""
    import torch

    return {"bf16": torch.bfloat16, "fp32": torch.float32}[name]
