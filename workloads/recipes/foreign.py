"""Training settings in the words of transformers' TrainingArguments and of DeepSpeed, made ours."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.recipes.reader import apply_overrides, parse, read_mapping
from workloads.recipes.train import TrainConfig

HF_NAMES = {
    "per_device_train_batch_size": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation", "num_train_epochs": "epochs",
    "lr_scheduler_type": "schedule", "save_steps": "checkpoint_every",
    "save_total_limit": "keep_last", "max_seq_length": "sequence_length",
    "max_length": "sequence_length", "torch_compile": "compile", "use_liger_kernel": "liger",
    "resume_from_checkpoint": "resume"
}  # fmt: skip
"""Keys of transformers.TrainingArguments and trl.SFTConfig that have another name here."""

KINDS = ("bf16", "fp16")
"""Keys of transformers that say a type by true and false."""


def create_training_arguments(path: Path | str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Return the training settings in a file; every wrong key and value is told at once."""
    path = Path(path)
    mapping = read_mapping(path)
    whole = mapping if "train" in mapping else {"train": mapping}
    mapping = apply_overrides(whole, overrides)["train"]
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
    if "eval_steps" in values:
        _put(values, "eval", {"every": values.pop("eval_steps")}, at=at, source="eval_steps")
    if values.get("load_in_4bit") is True:
        if values.get("method") == "full":
            raise ConfigError(
                f"{at}.load_in_4bit: got true with method full; weights of 4 bits cannot be "
                "trained: use method qlora, which trains adapters on them, or leave it out"
            )
        del values["load_in_4bit"]
        values["method"] = "qlora"
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


_VALUES = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_clipping": "max_grad_norm",
}
_OPTIMIZER = {"lr": "learning_rate", "weight_decay": "weight_decay"}
_SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_LEFT_OUT = (
    "activation_checkpointing", "aio", "autotuning", "comms_logger", "communication_data_type",
    "dump_state", "flops_profiler", "gradient_predivide_factor", "memory_breakdown",
    "prescale_gradients", "steps_per_print", "tensorboard", "train_batch_size",
    "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"
)  # fmt: skip
"""Keys of its buffers, logs and profilers, by its docs/_pages/config-json.md and constants.py."""
_SECTIONS = ("zero_optimization", "bf16", "fp16", "optimizer", "scheduler")


@dataclass(slots=True)
class Mapped:
    """Our keys, a line for everything that was read, and what of it has no meaning here."""

    at: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def put(self, source: str, value: Any, key: str, ours: Any) -> None:
        """Take over one value."""
        self.values[key] = ours
        self.lines.append(f"deepspeed {source}={value!r} -> train.{key}={ours!r}")

    def take(self, source: str, value: Any, key: str) -> None:
        """Take over one value as it is; `auto` leaves the recipe's."""
        if value == "auto":
            self.lines.append(f"deepspeed {source}='auto': the recipe's value stays")
        else:
            self.put(source, value, key, value)

    def leave(self, source: str, value: Any, why: str = "no counterpart") -> None:
        """Say that one value has no effect."""
        self.lines.append(f"deepspeed {source}={value!r}: {why}, left out")

    def refuse(self, source: str, problem: str) -> None:
        """Say what is wrong with one value."""
        self.problems.append(f"{self.at}.{source}: {problem}")

    def section(self, section: Mapping[str, Any], source: str) -> Mapping[str, Any]:
        """Return the mapping at the end of `source`; an empty one where it is none, or wrong."""
        value = section.get(source.rpartition(".")[2])
        if value is not None and not isinstance(value, Mapping):
            self.refuse(source, f"got {value!r}, expected a mapping")
        return value if isinstance(value, Mapping) else {}


def map_deepspeed(config: Mapping[str, Any], *, at: str) -> Mapped:
    """Return what a DeepSpeed config says in our keys; ConfigError for what has no meaning here."""
    mapped = Mapped(at)
    known = (*_VALUES, *_SECTIONS, *_LEFT_OUT)
    for key, value in config.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            mapped.refuse(key, f"unknown key{hint}")
        elif key in _SECTIONS and not isinstance(value, Mapping):
            mapped.refuse(key, f"got {value!r}, expected a mapping")
        elif key in _VALUES:
            mapped.take(key, value, _VALUES[key])
        elif key in _LEFT_OUT:
            mapped.leave(key, value)
    if not mapped.problems:
        _zero(config.get("zero_optimization", {}), mapped)
        _types(config, mapped)
        _optimizer(config, mapped)
    if mapped.problems:
        raise ConfigError("; ".join(mapped.problems))
    return mapped


def _zero(zero: Mapping[str, Any], mapped: Mapped) -> None:
    stage = zero.get("stage", 0)
    if stage not in (0, 3):
        expected = "3 (full sharding, FSDP2) or 0 (DDP); stages 1 and 2 divide only a part"
        mapped.refuse("zero_optimization.stage", f"got {stage!r}, expected {expected}")
        return
    devices: dict[str, Any] = {}
    for name in ("offload_param", "offload_optimizer"):
        section = mapped.section(zero, f"zero_optimization.{name}")
        devices[name] = device = section.get("device", "none")
        if device not in ("none", "cpu"):
            source = f"zero_optimization.{name}.device"
            mapped.refuse(source, f"got {device!r}, expected cpu or none")
        for key, value in section.items():
            if key != "device":
                mapped.leave(f"zero_optimization.{name}.{key}", value)
    offloads = stage == 3 and "cpu" in devices.values()
    strategy = "offload" if offloads else {0: "ddp", 3: "fsdp"}[stage]
    mapped.put("zero_optimization.stage", stage, "strategy", strategy)
    for name, value in zero.items():
        if name not in ("stage", *devices):
            mapped.leave(f"zero_optimization.{name}", value, "FSDP2 does this by itself")


def _types(config: Mapping[str, Any], mapped: Mapped) -> None:
    on = [kind for kind in KINDS if config.get(kind, {}).get("enabled", False) is True]
    if len(on) == 2:
        mapped.refuse("fp16.enabled", "got true with bf16.enabled true; enable one of them")
    elif on:
        mapped.put(f"{on[0]}.enabled", True, "dtype", on[0])
    for kind in KINDS:
        for key, value in config.get(kind, {}).items():
            if key != "enabled":
                mapped.leave(f"{kind}.{key}", value, "torch's own mixed precision has it")
            elif kind not in on:
                mapped.leave(f"{kind}.{key}", value, "the recipe's dtype stays")


def _optimizer(config: Mapping[str, Any], mapped: Mapped) -> None:
    optimizer = config.get("optimizer", {})
    kind = optimizer.get("type", "AdamW")
    if kind not in ("AdamW", "Adam"):
        mapped.refuse("optimizer.type", f"got {kind!r}, expected AdamW")
    if "type" in optimizer:
        mapped.lines.append(f"deepspeed optimizer.type={kind!r}: AdamW trains")
    for name, value in mapped.section(optimizer, "optimizer.params").items():
        source = f"optimizer.params.{name}"
        if name in _OPTIMIZER:
            mapped.take(source, value, _OPTIMIZER[name])
        else:
            mapped.leave(source, value, "AdamW runs with torch's own default")
    scheduler = config.get("scheduler", {})
    kind = scheduler.get("type")
    if kind is None:
        return
    if kind not in list(_SCHEDULERS):
        expected = ", ".join(_SCHEDULERS)
        mapped.refuse("scheduler.type", f"got {kind!r}, expected one of {expected}")
        return
    mapped.put("scheduler.type", kind, "schedule", _SCHEDULERS[kind])
    for name, value in mapped.section(scheduler, "scheduler.params").items():
        source = f"scheduler.params.{name}"
        if name == "warmup_num_steps":
            mapped.take(source, value, "warmup_steps")
        else:
            mapped.leave(source, value, "the recipe's schedule has it")
