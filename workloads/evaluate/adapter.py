"""The tuned model: an adapter merged into its base, or a fully trained model.

Owns the check that an adapter belongs to the base model, and the merge in fp32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import DataError
from workloads.common.models import load_model

if TYPE_CHECKING:
    import torch


def load_tuned(
    base_dir: Path, tuned_dir: Path, *, dtype: torch.dtype, device: torch.device
) -> Any:
    """Return the tuned model with weights of `dtype`; an adapter is merged, so it costs no speed.

    The merge happens in fp32: in bf16 small updates vanish in the rounding of large weights.
    """
    import torch

    config_file = tuned_dir / "adapter_config.json"
    if not config_file.is_file():
        if (tuned_dir / "config.json").is_file():
            return load_model(tuned_dir, dtype=dtype, device=device)
        raise DataError(
            f"{tuned_dir}: has neither adapter_config.json nor config.json; run the train job, or "
            "set evaluate.adapter to its final/ folder"
        )
    declared = json.loads(config_file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    if Path(declared).name != base_dir.name:
        raise DataError(
            f"{tuned_dir}: adapter of '{Path(declared).name}', the recipe's model is "
            f"'{base_dir.name}'; use the recipe of that model"
        )
    import peft

    base = load_model(base_dir, dtype=torch.float32, device=device)
    try:
        tuned = peft.PeftModel.from_pretrained(base, tuned_dir, is_trainable=False)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{tuned_dir}: adapter cannot be loaded: {error}") from error
    return tuned.merge_and_unload(safe_merge=True).to(dtype).eval()
