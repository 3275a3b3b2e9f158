"""A step with Liger's real kernels against one without, on a CPU; arguments: family, method.

Triton's interpreter runs the kernels in numpy: fp32 alone, since it adds bf16 as whole numbers.
Prints the loss of both, how far the gradients are apart, and what Liger has replaced, as JSON.
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import numpy
import torch
import triton.language as tl
from liger_kernel.ops import rms_norm
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM
from triton.runtime import interpreter

from workloads.recipes.train import TrainConfig
from workloads.train.model import prepare_model, use_liger

SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip


def teach_the_interpreter() -> None:
    """Triton 3.9.0's takes no float as an argument, and has none of CUDA's own functions."""
    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        handle = interpreter.TensorHandle(numpy.array([argument], numpy.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = with_floats
    rms_norm.rsqrt = lambda value: tl.rsqrt(value)  # looked up late: the interpreter exchanges it


def step(model: Any, tokens: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the loss and all gradients in a row."""
    logits = model(tokens, use_cache=False).logits.float()
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return loss.item(), torch.cat(gradients)


def main(family: str, method: str) -> None:
    teach_the_interpreter()
    torch.manual_seed(0)
    shape = AutoConfig.for_model(family, **SHAPE)
    config = TrainConfig(
        dataset="x", max_steps=1, learning_rate=0.1, method=method, dtype="fp32",
        gradient_checkpointing=method == "full",
    )  # fmt: skip
    plain = prepare_model(AutoModelForCausalLM.from_config(shape), config)
    for name, weight in plain.named_parameters():
        if "lora_B" in name:  # begins with zeros, and so would half the gradients
            torch.nn.init.normal_(weight, std=0.1)
    fused = use_liger(copy.deepcopy(plain), config, torch.device("cuda"))
    tokens = torch.randint(0, 128, (2, 17))
    (loss, gradients), (fused_loss, fused_gradients) = (
        step(model, tokens) for model in (plain, fused)
    )
    apart = (gradients - fused_gradients).norm() / gradients.norm()
    replaced = {
        type(part).__name__
        for part in fused.modules()
        if getattr(part.forward, "__func__", part.forward).__module__.startswith("liger_kernel")
    }
    print(json.dumps({
        "loss": loss, "fused_loss": fused_loss, "apart": apart.item(),
        "replaced": sorted(replaced),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
