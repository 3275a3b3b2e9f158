"""What a run leaves behind: the original, the adapter or the whole model, and the merged one.

All as safetensors in the layout of transformers, which vLLM reads too. Every folder appears whole
or not at all. Only rank 0 writes.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch

from workloads.common import atomic
from workloads.common.log import log
from workloads.common.models import load_model, torch_dtype
from workloads.train.config import TrainConfig
from workloads.train.tasks import Task

ORIGINAL, MERGED = "original", "merged"


def save_original(run_dir: Path, *, model_dir: Path | None, model: Any, task: Task) -> Path:
    """Copy the model as it was before the first step to `original/`; once, also after a resume."""
    target = run_dir / ORIGINAL
    if target.exists():
        return target
    with atomic.new_directory(target) as partial:
        if model_dir is None:
            # Made here, so it is tiny: a copy without its adapters is what there was before them.
            base = copy.deepcopy(model).unload() if hasattr(model, "peft_config") else model
            base.save_pretrained(partial)
            task.save_preprocessor(partial)
        else:
            shutil.copytree(model_dir, partial, dirs_exist_ok=True)
        _open_to_readers(partial)
    log(f"original model in {target}")
    return target


def write_final(
    target: Path, *, model: Any, whole: dict[str, torch.Tensor], config: TrainConfig, task: Task
) -> None:
    """Write the adapter, or the whole model, with its tokenizer to `target`.

    `whole` are the weights by name, gathered from all ranks.
    """
    if not config.has_adapters:
        whole = {name: weight.to(torch_dtype(config.dtype)) for name, weight in whole.items()}
    with atomic.new_directory(target, replace=True) as partial:
        model.save_pretrained(partial, state_dict=whole)
        task.save_preprocessor(partial)
        _open_to_readers(partial)


def write_merged(run_dir: Path, *, model_dir: Path, adapter: Path, config: TrainConfig) -> Path:
    """Write `adapter` merged into its base to `merged/`: a model that needs no peft."""
    import peft

    dtype = torch_dtype(config.dtype)
    # The base is read again in 16 bits: a merge into 4-bit weights would round the adapter away.
    base = load_model(model_dir, dtype=dtype, device=torch.device("cpu"))
    model: Any = peft.PeftModel.from_pretrained(base, adapter)
    merged = model.merge_and_unload()
    target = run_dir / MERGED
    with atomic.new_directory(target, replace=True) as partial:
        merged.to(dtype).save_pretrained(partial)
        for path in adapter.iterdir():
            if not path.name.startswith("adapter_") and not (partial / path.name).exists():
                shutil.copy2(path, partial / path.name)
        (partial / "README.md").unlink(missing_ok=True)
        _open_to_readers(partial)
    log(f"merged model in {target}")
    return target


def _open_to_readers(folder: Path) -> None:
    """Let other users read: safetensors writes 0600, and evaluate may run as another user."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
