"""A DeepSpeed config as our keys: ZeRO-3 is FSDP2 with full sharding. deepspeed is not needed.

Owns which of its keys mean what here. Keys that tune DeepSpeed's own buffers have no counterpart
and are named; an unknown key is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.common.exit_codes import ConfigError

_VALUES = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_clipping": "max_grad_norm",
}
_OPTIMIZER = {"lr": "learning_rate", "weight_decay": "weight_decay"}
_SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_OWN_BUFFERS = (
    "steps_per_print",
    "wall_clock_breakdown",
    "train_batch_size",
    "zero_allow_untested_optimizer",
    "communication_data_type",
)
_SECTIONS = ("zero_optimization", "bf16", "fp16", "optimizer", "scheduler")


@dataclass(slots=True)
class Mapped:
    """Our keys, and a line for everything that was read."""

    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def put(self, source: str, value: Any, key: str, ours: Any) -> None:
        """Take over one value."""
        self.values[key] = ours
        self.lines.append(f"deepspeed {source}={value!r} -> train.{key}={ours!r}")


def map_deepspeed(config: Mapping[str, Any], *, at: str) -> Mapped:
    """Return what a DeepSpeed config says in our keys; ConfigError for what has no meaning here."""
    mapped = Mapped()
    problems: list[str] = []
    known = (*_VALUES, *_SECTIONS, *_OWN_BUFFERS)
    for key, value in config.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            problems.append(f"{at}.{key}: unknown key{hint}")
        elif key in _SECTIONS and not isinstance(value, Mapping):
            problems.append(f"{at}.{key}: got {value!r}, expected a mapping")
        elif key in _VALUES:
            if value == "auto":
                mapped.lines.append(f"deepspeed {key}='auto': the recipe's value stays")
            else:
                mapped.put(key, value, _VALUES[key], value)
        elif key in _OWN_BUFFERS:
            mapped.lines.append(f"deepspeed {key}={value!r}: no counterpart, left out")
    if not problems:
        _zero(config.get("zero_optimization", {}), mapped, at, problems)
        _types(config, mapped, at, problems)
        _optimizer(config, mapped, at, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return mapped


def _zero(zero: Mapping[str, Any], mapped: Mapped, at: str, problems: list[str]) -> None:
    stage = zero.get("stage", 0)
    if stage not in (0, 3):
        problems.append(
            f"{at}.zero_optimization.stage: got {stage!r}, expected 3 (full sharding, FSDP2) or 0 "
            "(DDP); stages 1 and 2 divide only a part"
        )
        return
    devices = {
        name: (zero.get(name) or {}).get("device", "none")
        for name in ("offload_param", "offload_optimizer")
    }
    wrong = [name for name, device in devices.items() if device not in ("none", "cpu")]
    for name in wrong:
        problems.append(
            f"{at}.zero_optimization.{name}.device: got {devices[name]!r}, expected cpu or none"
        )
    offloads = stage == 3 and "cpu" in devices.values()
    strategy = "offload" if offloads else {0: "ddp", 3: "fsdp"}[stage]
    mapped.put("zero_optimization.stage", stage, "strategy", strategy)
    for name, value in zero.items():
        if name not in ("stage", *devices):
            mapped.lines.append(
                f"deepspeed zero_optimization.{name}={value!r}: FSDP2 does this by itself, left out"
            )


def _types(config: Mapping[str, Any], mapped: Mapped, at: str, problems: list[str]) -> None:
    on = [kind for kind in ("bf16", "fp16") if config.get(kind, {}).get("enabled", False) is True]
    if len(on) == 2:
        problems.append(f"{at}.fp16.enabled: got true with bf16.enabled true; enable one of them")
    elif on:
        mapped.put(f"{on[0]}.enabled", True, "dtype", on[0])


def _optimizer(config: Mapping[str, Any], mapped: Mapped, at: str, problems: list[str]) -> None:
    optimizer = config.get("optimizer", {})
    kind = optimizer.get("type", "AdamW")
    if kind not in ("AdamW", "Adam"):
        problems.append(f"{at}.optimizer.type: got {kind!r}, expected AdamW")
    for name, value in optimizer.get("params", {}).items():
        if name in _OPTIMIZER and value != "auto":
            mapped.put(f"optimizer.params.{name}", value, _OPTIMIZER[name], value)
    scheduler = config.get("scheduler", {})
    kind = scheduler.get("type")
    if kind is not None and kind not in _SCHEDULERS:
        problems.append(
            f"{at}.scheduler.type: got {kind!r}, expected one of {', '.join(_SCHEDULERS)}"
        )
    elif kind is not None:
        mapped.put("scheduler.type", kind, "schedule", _SCHEDULERS[kind])
        steps = scheduler.get("params", {}).get("warmup_num_steps", "auto")
        if steps != "auto":
            mapped.put("scheduler.params.warmup_num_steps", steps, "warmup_steps", steps)
