"""Loading a tokenizer and a causal language model from a folder, offline.

Owns the options that every job shares: no network, SDPA attention, the type of the weights.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import warnings
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from workloads.common.exit_codes import DataError

if TYPE_CHECKING:
    import torch


# peft imports bitsandbytes, which says on every CPU that a hub has faster kernels. What
# it cannot do is an error of its own where it is used.
logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
_CATALOG = Path(__file__).with_name("models.tsv")


def catalog() -> list[dict[str, str]]:
    """Return the base models whose licence somebody has read, and when, by the table's columns."""
    lines = _CATALOG.read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(lines, delimiter="\t"))


def find(model: str) -> dict[str, str] | None:
    """Return the entry of a recipe's model; None where nobody wrote one."""
    name = PurePosixPath(model).name.lower()
    return next((entry for entry in catalog() if entry["name"].lower() == name), None)


def load_tokenizer(model_dir: Path) -> Any:
    """Return the tokenizer in `model_dir`; one without a padding token pads with its eos."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    except (OSError, ValueError) as error:
        names = ("tokenizer.json", "tokenizer_config.json")
        if not any((model_dir / name).is_file() for name in names):
            raise DataError(
                f"{model_dir}: no tokenizer: neither {' nor '.join(names)} is there; copy the "
                "model's own beside its weights"
            ) from error
        raise DataError(
            f"{model_dir}: tokenizer cannot be loaded: {' '.join(str(error).split())}"
        ) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_model(model_dir: Path, *, dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
    """Return the model in `model_dir` with weights of `dtype` on `device`, in eval mode.

    `options` go to from_pretrained: another attention, or four bits a weight.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    # peft asks transformers for a property that transformers has renamed; not the user's business.
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*")
    # By itself transformers asks at a terminal whether a model's own program may run.
    options = {"attn_implementation": "sdpa", "trust_remote_code": False, **options}
    if "quantization_config" in options or device.type == "cuda":
        # 4-bit weights are made where they stay; others come one by one, not through host memory.
        options["device_map"] = {"": device}
    try:
        kind: Any = AutoModelForCausalLM
        model, found = kind.from_pretrained(
            model_dir, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"{model_dir}: model cannot be loaded: {error}") from error
    if found["missing_keys"]:  # transformers has made values up
        raise DataError(f"{model_dir}: its files lack {', '.join(sorted(found['missing_keys']))}")
    return (model if "device_map" in options else model.to(device)).eval()


def stored_tensors(model_dir: Path) -> dict[str, tuple[Path, tuple[int, ...]]]:
    """Return file and shape of each tensor in the safetensors of `model_dir`; reads headers only.

    DataError has every file that is missing, damaged or too short, with what it lacks.
    """
    single, index = model_dir / "model.safetensors", model_dir / "model.safetensors.index.json"
    files: dict[Path, list[str]] = {}
    if index.is_file() and not single.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            for name, file in weight_map.items():
                files.setdefault(model_dir / file, []).append(name)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{index}: is damaged: {error!r}; copy the model again") from error
    found: dict[str, tuple[Path, tuple[int, ...]]] = {}
    problems: list[str] = []
    for path, names in sorted(files.items()) or [(single, [])]:
        lacks, why = names, ""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                start = 8 + int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(start - 8, size)))
            header.pop("__metadata__", None)
            lacks = [k for k, v in header.items() if start + v["data_offsets"][1] > size]
            lacks += [name for name in names if name not in header]
            why = f"has {size:,} bytes" if lacks else ""
            found |= {k: (path, tuple(v["shape"])) for k, v in header.items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or "its header is damaged"
        if why:
            problems.append(f"{path}: {why}, lacks tensors ({len(lacks)}): {', '.join(lacks[:3])}")
    if problems:
        raise DataError(f"{'; '.join(problems)}; copy the model again")
    return found


def torch_dtype(name: str) -> torch.dtype:
    """Return torch's type for a recipe's `bf16`, `fp16` or `fp32`."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
