"""Training configs as files: create_training_arguments(path) -> TrainConfig.

Reads JSON and YAML, a whole recipe or the section `train` alone, in our keys or in those of
transformers' TrainingArguments. Has no defaults: config.py does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.common.recipe import apply_overrides, parse, read_mapping
from workloads.train.config import TrainConfig
from workloads.train.deepspeed import map_deepspeed

HF_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "num_train_epochs": "epochs",
    "lr_scheduler_type": "schedule",
    "save_steps": "checkpoint_every",
    "save_total_limit": "keep_last",
    "max_seq_length": "sequence_length",
    "max_length": "sequence_length",
    "torch_compile": "compile",
    "use_liger_kernel": "liger",
    "resume_from_checkpoint": "resume",
}
"""Keys of transformers.TrainingArguments and trl.SFTConfig that have another name here."""

KINDS = ("bf16", "fp16")
"""Keys of transformers that say a type by true and false."""
BACKENDS = ("nccl", "gloo")
"""What transformers' `ddp_backend` may say; which one it is follows from the device."""


def create_training_arguments(path: Path | str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the training settings in a file; every wrong key and value is told at once."""
    path = Path(path)
    mapping = read_mapping(path)
    if "train" in mapping:
        mapping = apply_overrides(mapping, overrides)["train"]
    else:
        mapping = apply_overrides({"train": mapping}, overrides)["train"]
    at = f"{path.stem}.train"
    return parse(TrainConfig, translate(mapping, at=at, folder=path.parent), at=at)


def translate(mapping: Any, *, at: str, folder: Path) -> Any:
    """Return a section `train` in our keys: names of transformers and a DeepSpeed config mapped.

    `folder` is where a DeepSpeed config that is named as a file lies.
    """
    if not isinstance(mapping, Mapping):
        return mapping
    values = dict(mapping)
    asked = {kind: values.pop(kind) for kind in KINDS if isinstance(values.get(kind), bool)}
    for kind, wanted in asked.items():
        if wanted:
            _put(values, "dtype", kind, at=at, source=kind)
    if asked.get("bf16") is False and not asked.get("fp16"):
        # transformers then trains in fp32, where our default is bf16.
        if values.setdefault("dtype", "fp32") == "bf16":
            raise ConfigError(
                f"{at}.bf16: got false, but {at}.dtype is 'bf16'; give one of the two"
            )
        log(f"train.bf16=false -> train.dtype={values['dtype']!r}")
    for name, ours in HF_NAMES.items():
        if name in values:
            value = values.pop(name)
            if ours == "liger" and isinstance(value, bool):
                value = "on" if value else "off"
            whole = isinstance(value, float) and value.is_integer()
            _put(values, ours, int(value) if whole else value, at=at, source=name)
    if values.get("load_in_4bit") is True:
        if values.get("method") == "full":
            raise ConfigError(
                f"{at}.load_in_4bit: got true with method full; weights of 4 bits cannot be "
                "trained: use method qlora, which trains adapters on them, or leave it out"
            )
        del values["load_in_4bit"]
        values["method"] = "qlora"
    if "ddp_backend" in values:
        backend = values.pop("ddp_backend")
        if backend not in BACKENDS:
            raise ConfigError(
                f"{at}.ddp_backend: got {backend!r}, expected one of {', '.join(BACKENDS)}"
            )
        log(f"train.ddp_backend {backend}: ranks with GPUs meet over nccl, others over gloo")
    if "deepspeed" in values:
        config = values.pop("deepspeed")
        if isinstance(config, str):
            path = folder / config
            config, where = read_mapping(path), path.name
        else:
            where = f"{at}.deepspeed"
        if config is not None:
            if not isinstance(config, Mapping):
                raise ConfigError(f"{where}: got {config!r}, expected a mapping or a file's name")
            mapped = map_deepspeed(config, at=where)
            for line in mapped.lines:
                log(line)
            for key, value in mapped.values.items():
                if key in values and values[key] != value and values[key] != "auto":
                    log(f"train.{key}={values[key]!r} wins over DeepSpeed's {value!r}")
                else:
                    values[key] = value
    for line in without_effect(values):
        log(line)
    return values


def without_effect(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting of a section `train` that another one takes the effect of."""
    lines: list[str] = []
    every, epochs = values.get("checkpoint_every"), values.get("checkpoint_every_epochs")
    if every is not None and epochs is not None:
        lines.append(
            f"train.checkpoint_every={every!r} has no effect: checkpoints are saved every "
            f"{epochs!r} epochs (train.checkpoint_every_epochs)"
        )
    warmup, steps = values.get("warmup_steps"), values.get("max_steps")
    if isinstance(warmup, int) and isinstance(steps, int) and warmup > steps > 0:
        lines.append(
            f"train.warmup_steps={warmup} is more than train.max_steps={steps}: the learning rate "
            f"ends at {steps / warmup:.2g} of train.learning_rate"
        )
    return lines


def _put(values: dict[str, Any], key: str, value: Any, *, at: str, source: str) -> None:
    if key in values and values[key] != value:
        raise ConfigError(
            f"{at}.{source}: got {value!r}, but {at}.{key} is {values[key]!r}; give one of the two"
        )
    values[key] = value
