"""What this node cannot do of a recipe: told before a rank takes a GPU or reads a model.

Nothing falls back silently: a kernel that the recipe names by hand and that is missing is refused.
"""

from __future__ import annotations

from importlib.util import find_spec
from shutil import which

from workloads.common.exit_codes import ConfigError
from workloads.train.config import TrainConfig


def check_node(config: TrainConfig, strategy: str) -> None:
    """Raise ConfigError with everything that this node lacks for `config`."""
    import torch

    has_gpu = torch.cuda.is_available()
    problems: list[str] = []
    if config.method == "qlora":
        reason = four_bit_problem(has_gpu=has_gpu)
        if reason is not None:
            problems.append(f"train.method qlora: {reason}; use method lora")
    if config.attention == "flash" and not (has_gpu and find_spec("flash_attn")):
        missing = "the package flash_attn is not installed" if has_gpu else "there is no GPU"
        problems.append(f"train.attention flash: {missing}; use auto, which takes it where it is")
    if config.attention == "flash" and config.dtype == "fp32":
        problems.append("train.attention flash: has no fp32 kernels; use dtype bf16, or sdpa")
    if config.attention == "flex" and not has_gpu:
        problems.append("train.attention flex: trains on a GPU only; use sdpa")
    if config.liger == "on" and not (has_gpu and find_spec("liger_kernel")):
        missing = "the package liger_kernel is not installed" if has_gpu else "there is no GPU"
        problems.append(f"train.liger on: {missing}; use auto")
    if config.compile:
        # Triton builds its launchers with a C compiler; on a CPU inductor's own code is C++.
        names, language = (("gcc", "clang"), "C") if has_gpu else (("g++", "clang++"), "C++")
        if not any(which(name) for name in names):
            problems.append(
                f"train.compile: there is no {language} compiler on this node; install {names[0]}, "
                "or leave it out"
            )
    if strategy == "offload" and not has_gpu:
        problems.append("train.strategy offload: there is no GPU to offload from; use fsdp or ddp")
    if problems:
        raise ConfigError("; ".join(problems))


def four_bit_problem(*, has_gpu: bool) -> str | None:
    """Return why 4-bit weights cannot be trained on here; None when they can."""
    if find_spec("bitsandbytes") is None:
        return "the package bitsandbytes is not installed"
    if has_gpu:
        return None
    import torch

    from workloads.train.quantize import quiet

    quiet()
    try:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit

        values = torch.linspace(-1, 1, 64)
        packed, state = quantize_4bit(values, quant_type="nf4")
        error = (dequantize_4bit(packed, state) - values).abs().max()
    except Exception as error:
        return f"bitsandbytes has no 4-bit kernels for this CPU ({error})"
    return None if float(error) < 0.2 else "bitsandbytes gives wrong 4-bit values on this CPU"
