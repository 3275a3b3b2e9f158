"""Convert a GGUF language model to a plain folder: safetensors in bf16, tokenizer, chat template.

Owns the conversion only; strict: a missing or left-over tensor is an error. The folder appears
whole or not at all.
Usage: python -m workloads.data.convert_gguf SRC_DIR_OR_GGUF DEST
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from workloads.common import atomic
from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.data.manifest import command


def find_gguf(source: Path) -> Path:
    """Return the one .gguf file that `source` is or holds."""
    if source.is_file():
        return source
    if not source.is_dir():
        raise DataError(f"{source}: no such file or folder; give a .gguf file or its folder")
    found = sorted(source.rglob("*.gguf"))
    if len(found) != 1:
        raise DataError(
            f"{source}: holds {len(found)} .gguf files, expected 1; name the file itself"
        )
    return found[0]


def convert(source: Path, destination: Path) -> None:
    """Write the model in `source` to folder `destination`, exchanging an earlier one."""
    gguf = find_gguf(source)
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    log(f"reading {gguf}")
    packed = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, trust_remote_code=False
    )
    if not tokenizer.chat_template:
        raise DataError(f"{gguf}: has no chat template; take an instruction-tuned model")

    # A clean model from the config alone: what transformers reads from GGUF keeps a quantization
    # config that save_pretrained would write into the folder.
    values = packed.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        values.pop(name, None)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    config.dtype = torch.bfloat16
    clean = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    state = {name: tensor.to(torch.bfloat16) for name, tensor in packed.state_dict().items()}
    missing, unexpected = clean.load_state_dict(state, strict=False)
    tied = set(clean._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise DataError(f"{gguf}: missing tensors {missing}, left-over tensors {unexpected}")
    clean.tie_weights()
    clean.generation_config = packed.generation_config

    with atomic.new_directory(destination, replace=True, readable=True) as folder:
        clean.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    num_parameters = sum(parameter.numel() for parameter in clean.parameters())
    log(f"wrote {destination}: {num_parameters / 1e6:.1f}M parameters, bf16")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.data.convert_gguf", description="GGUF to safetensors"
    )
    parser.add_argument("source", type=Path, help="a .gguf file, or a folder with one")
    parser.add_argument("destination", type=Path, help="folder to write")
    options = parser.parse_args(arguments)
    return command(lambda: convert(options.source, options.destination))


if __name__ == "__main__":
    sys.exit(main())
