"""The tuned model: an adapter merged into its base, or a fully trained model.

Owns the check that an adapter belongs to the base model, and the merge in fp32.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import DataError
from workloads.common.models import load_model
from workloads.evaluate.header import read_object

if TYPE_CHECKING:
    import torch


def load_tuned(base_dir: Path, tuned_dir: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the tuned model with weights of `dtype`; an adapter is merged: it costs no speed."""
    config_file = tuned_dir / "adapter_config.json"
    if not config_file.is_file():
        if (tuned_dir / "config.json").is_file():
            return load_model(tuned_dir, dtype=dtype, device=device)
        raise DataError(
            f"{tuned_dir}: has neither adapter_config.json nor config.json; run the train job, or "
            "set evaluate.adapter to its final/ folder"
        )
    check_base(base_dir, tuned_dir)
    import peft

    base = load_model(base_dir, dtype=dtype, device=device)
    try:
        tuned = peft.PeftModel.from_pretrained(base, tuned_dir, is_trainable=False)
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{tuned_dir}: adapter cannot be loaded: {error}") from error
    return merge(tuned).eval()


def check_base(base_dir: Path, adapter_dir: Path) -> None:
    """Refuse an adapter that was trained on another model than the one in `base_dir`."""
    path = adapter_dir / "adapter_config.json"
    declared = read_object(path).get("base_model_name_or_path")
    if not isinstance(declared, str):
        raise DataError(f"{path}: is damaged: names no base model; run the train job again")
    if Path(declared).name != base_dir.name:
        raise DataError(
            f"{adapter_dir}: adapter of '{Path(declared).name}', the recipe's model is "
            f"'{base_dir.name}'; use the recipe of that model"
        )


def merge(tuned: Any) -> Any:
    """Return the base model of a LoRA or DoRA model with the adapter folded in, in fp32 by weight.

    peft's own merge adds in the base's type, where bf16 rounds twice; an fp32 copy of the whole
    model would not fit beside a 14B model on a 48 GB GPU.
    """
    import torch
    from peft.tuners.lora import LoraLayer

    with torch.no_grad():
        for module in tuned.modules():
            if isinstance(module, LoraLayer):
                layer: Any = module
                weight = layer.get_base_layer().weight
                for name in layer.active_adapters:
                    whole = weight.float() + layer.get_delta_weight(name).float()
                    if layer.use_dora.get(name):
                        # arXiv:2402.09353: a row's length is learned apart from its direction.
                        magnitude = layer.lora_magnitude_vector[name].weight.float()
                        whole *= (magnitude / whole.norm(dim=1))[:, None]
                    weight.copy_(whole.to(weight.dtype))
    return tuned.unload()
