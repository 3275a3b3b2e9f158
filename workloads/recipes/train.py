"""Section `train` of a recipe: every key, its default, and the mixes that are refused.

Also settings in the words of transformers' TrainingArguments and of DeepSpeed, made ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.recipes.reader import (
    NotNegative,
    Positive,
    Settings,
    apply_overrides,
    below_one,
    least,
    parse,
    read_mapping,
    require,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig(Settings):
    """How state is saved, kept and taken up again; how often is train.checkpoint_every."""

    background: bool = True
    """Whether files are written while training goes on, from one copy in host memory."""
    keep_best: bool = True
    """Whether train.eval's best checkpoint stays beyond train.keep_last and becomes final/."""
    elastic_every: NotNegative[int] = 0
    """Train steps between elastic checkpoints; 0: only before the job changes its size."""
    every_s: NotNegative[int] = 0
    """Seconds after which training is saved again, beside its schedule by steps; 0: never.

    What is lost at most where a save takes longer than the notice of a node that is taken."""
    same_world_size_only: bool = False
    """Whether a sharded checkpoint of another world size is refused instead of resharded."""
    timeout_s: Annotated[int, least(10)] = 600
    """Seconds after which a rank that is not heard of is lost, and a step that stands is hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig(Settings):
    """Validation while training, on rows that the data set holds out; also after the last step."""

    every: Positive[int | None] = None
    """Train steps between validations; exactly one of every and every_epochs is set."""
    every_epochs: Positive[int | None] = None
    rows: Positive[int] = 512
    """Conversations at most: the last of the held-out file, as evaluate reads the first."""
    patience: Positive[int | None] = None
    """Validations in a row without a new lowest loss that end the run; None: no early end."""

    def _check(self) -> None:
        require(
            (self.every is None) != (self.every_epochs is None),
            f"every: got {self.every} with every_epochs {self.every_epochs}; set one of them",
        )


LOSS_CHUNK_TOKENS = 2048
"""Enough for a matrix product to fill a GPU; its logits over 152,064 tokens take 1.2 GB in fp32."""
STRATEGIES = ("ddp", "fsdp", "hsdp", "offload")
"""How the trainer can spread a run over ranks."""
RESUMABLE = (
    "attention", "checkpoint", "checkpoint_every", "checkpoint_every_epochs", "compile",
    "cpu_threads", "ddp_backend", "epochs", "eval", "export_merged", "fp32_embeddings", "gate",
    "gradient_accumulation", "gradient_checkpointing", "keep_in", "keep_last", "liger",
    "loss_chunk_tokens", "max_steps", "micro_batch_size", "resume", "save_original", "schedule",
    "stage", "strategy", "warmup_steps",
)  # fmt: skip
"""Keys that may differ between a run and its resumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig(Settings):
    """Low-rank adapters."""

    rank: Positive[int] = 16
    alpha: Positive[int] = 32
    dropout: Annotated[float, below_one] = 0.0
    target_modules: tuple[str, ...] = ("all-linear",)
    dora: bool = False
    """Train the length of each weight's columns apart from their direction (DoRA)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Settings):
    """What a run must reach to pass, beside ending with 0, `final/` and no lack of memory."""

    max_loss: Positive[float | None] = None
    """Nats per label token: of the held-out rows with train.eval, else of the last step."""
    min_tokens_per_s_per_gpu: Positive[float | None] = None
    """Useful tokens; judged on GPUs only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Settings):
    """One fine-tuning run."""

    dataset: str
    """Folder in the place `data` that prepare-data wrote, or `generated` for a tiny task."""
    stage: Literal["auto", "never"] = "auto"
    """auto: from a copy on the place `scratch` where that is a disk of the node's own with room."""
    task: Literal[
        "causal_lm",
        "text_classification",
        "text_to_text",
        "image_classification",
        "semantic_segmentation",
        "object_detection",
    ] = "causal_lm"
    method: Literal["lora", "full", "qlora"] = "lora"
    """qlora: the base in 4 bits (nf4), adapters on it."""
    fp32_embeddings: bool = False
    """qlora: embeddings, head, norms and what passes between layers in fp32, as PEFT's
    prepare_model_for_kbit_training has them."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: Literal["bf16", "fp32", "fp16"] = "bf16"
    """Type of the weights in the forward pass; trained weights are kept in fp32."""
    sequence_length: Positive[int] = 4096
    """Tokens of one packed row."""
    packing: bool = True
    """Several conversations share a row; False: one row each, padded to the longest of its step."""
    micro_batch_size: Positive[int] = 1
    """Packed rows per rank and forward pass."""
    gradient_accumulation: Positive[int] = 1
    epochs: Positive[int | None] = None
    max_steps: Positive[int | None] = None
    """Train steps; exactly one of epochs and max_steps is set."""
    learning_rate: Positive[float]
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: NotNegative[int] = 0
    weight_decay: NotNegative[float] = 0.0
    max_grad_norm: Positive[float] = 1.0
    gradient_checkpointing: NotNegative[bool | int | None] = None
    """Recompute activations in the backward pass: of all layers, of none, or of so many, the first
    ones; None: of as few as the job's plan needs to fit."""
    loss_chunk_tokens: NotNegative[int] = LOSS_CHUNK_TOKENS
    """Label tokens whose logits exist at once; 0: all of a micro batch."""
    attention: Literal["auto", "varlen", "sdpa"] = "auto"
    """varlen: each document alone, by torch's kernel for packed rows. sdpa: a dense mask of
    documents. auto: varlen on a GPU in 16 bits where the model allows it."""
    compile: bool | None = None
    """Compile each layer; None: on a GPU where a C compiler is."""
    liger: Literal["auto", "on", "off"] = "auto"
    """auto: Liger's kernels on a GPU where they can be imported."""
    seed: int = 0
    checkpoint_every: NotNegative[int] = 100
    """Train steps between checkpoints; 0 keeps only those that a signal asks for."""
    checkpoint_every_epochs: Positive[int | None] = None
    """Epochs between checkpoints, instead of checkpoint_every, which then has no effect."""
    keep_last: Positive[int] = 2
    """Committed checkpoints of this run that stay."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    resume: str = "requeue"
    """Where a first start begins. requeue, never: at step 0. auto: with the newest earlier run of
    the job. Else a checkpoint folder. A restarted job goes on from what it saved itself."""
    overlong: Literal["drop", "cut", "refuse"] = "refuse"
    """What happens to a conversation longer than sequence_length; what is dropped or cut counts."""
    strategy: Literal["auto", "ddp", "fsdp", "hsdp", "offload"] = "auto"
    """How the run is spread over ranks; auto follows the plan that was shipped with the job.
    hsdp: fsdp inside each node, the same on every node. offload: fsdp with the shards in the
    node's memory."""
    ddp_backend: Literal["nccl", "gloo"] | None = None
    """What ranks meet over; None: NCCL where they have GPUs, else gloo."""
    keep_in: Literal["chkpt", "model"] = "chkpt"
    """Place of its checkpoints and models; model: beside those that are downloaded, where recipes
    find them by name."""
    save_original: bool = False
    """Copy the model beside the run before the first step."""
    export_merged: bool = False
    """Write adapters also merged into their base, as one model folder."""
    eval: EvalConfig | None = None
    """None: nothing is validated, and no checkpoint is the best one."""
    gate: GateConfig | None = None
    cpu_threads: Positive[int | None] = None
    """Threads per rank on CPU; None leaves torch's choice."""

    def _check(self) -> None:
        require(
            (self.epochs is None) != (self.max_steps is None),
            f"max_steps: got {self.max_steps} with epochs {self.epochs}; set exactly one of them",
        )
        for message, is_so in self._mixes().items():
            require(not is_so, message)

    def _mixes(self) -> dict[str, bool]:
        """Return what is wrong with each pair of keys that can contradict each other, if it is."""
        sharded, other_task = self.strategy in STRATEGIES[1:], self.task != "causal_lm"
        return {
            (
                "dtype: got fp32 with method qlora, which computes in 16 bits; expected bf16 or "
                "fp16, or method lora"
            ): self.method == "qlora" and self.dtype == "fp32",
            (
                f"fp32_embeddings: got true with method {self.method}, whose base has no 4 bits to "
                "prepare for; use method qlora, or dtype fp32"
            ): self.fp32_embeddings and self.method != "qlora",
            (
                f"strategy: got {self.strategy} with method qlora; 4-bit weights are not divided "
                "between ranks; use ddp (a 14B base takes 10 GB), or method lora"
            ): self.method == "qlora" and sharded,
            (
                f"strategy: got {self.strategy} with dtype fp16, whose loss scale is kept for "
                "whole gradients only; use bf16, or strategy ddp"
            ): self.dtype == "fp16" and sharded,
            (
                "lora.dora: got true with method full, which has no adapters; use method lora"
            ): self.lora.dora and self.method == "full",
            (
                "export_merged: got true with method full, whose final/ is the whole model; leave "
                "it out"
            ): self.export_merged and self.method == "full",
            (
                f"method: got qlora with task {self.task}; 4-bit bases are read for causal_lm "
                "only; use lora or full"
            ): other_task and self.method == "qlora",
            (
                f"method: got {self.method} with task {self.task}, which trains all; use full"
            ): self.task in ("semantic_segmentation", "object_detection") and self.method != "full",
            (
                f"export_merged: got true with task {self.task}, whose final/ is loaded as it is; "
                "leave it out"
            ): other_task and self.export_merged,
            (
                f"compile: got true with task {self.task}; only the rows of causal_lm keep one "
                "shape; leave it out"
            ): other_task and bool(self.compile),
            f"loss_chunk_tokens: has no meaning with task {self.task}; leave it out": (
                other_task and self.loss_chunk_tokens != LOSS_CHUNK_TOKENS
            ),
        }

    @property
    def has_adapters(self) -> bool:
        """True where the base is frozen and adapters are trained."""
        return self.method != "full"


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


_TAKEN = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "optimizer.params.weight_decay": "weight_decay",
    "scheduler.params.warmup_num_steps": "warmup_steps",
}
_SECTIONS = {
    "zero_optimization": "FSDP2 does this by itself",
    "zero_optimization.offload_param": "no counterpart",
    "zero_optimization.offload_optimizer": "no counterpart",
    "bf16": "torch's own mixed precision has it",
    "fp16": "torch's own mixed precision has it",
    "optimizer": "AdamW runs with torch's own default",
    "optimizer.params": "AdamW runs with torch's own default",
    "scheduler": "the recipe's schedule has it",
    "scheduler.params": "the recipe's schedule has it",
}
"""Each with the reason why what is neither taken nor a choice has no effect."""
_STAGES = {0: "ddp", 3: "fsdp"}
_SCHEDULERS = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_DEVICES = ("zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device")
_CHOICES: dict[str, tuple[Collection[Any], str]] = {
    "zero_optimization.stage": (
        list(_STAGES),
        "3 (full sharding, FSDP2) or 0 (DDP); stages 1 and 2 divide only a part",
    ),
    **dict.fromkeys(_DEVICES, (["none", "cpu"], "cpu or none")),
    "optimizer.type": (["AdamW", "Adam"], "AdamW"),
    "scheduler.type": ([None, *_SCHEDULERS], f"one of {', '.join(_SCHEDULERS)}"),
}
"""What may be said, and how that is told; a list, as what is said may not be hashable."""
_LEFT_OUT = (
    "activation_checkpointing", "aio", "autotuning", "comms_logger", "communication_data_type",
    "dump_state", "flops_profiler", "gradient_predivide_factor", "memory_breakdown",
    "prescale_gradients", "steps_per_print", "tensorboard", "train_batch_size",
    "wall_clock_breakdown", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer"
)  # fmt: skip
"""Keys of its buffers, logs and profilers, by its docs/_pages/config-json.md and constants.py."""
_KNOWN = [path for path in (*_TAKEN, *_SECTIONS, *_LEFT_OUT) if "." not in path]


@dataclass(slots=True)
class Mapped:
    """Our keys, a line for everything that was read, and what of it has no meaning here."""

    at: str
    values: dict[str, Any] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def put(self, source: str, value: Any, key: str, ours: Any) -> None:
        self.values[key] = ours
        self.lines.append(f"deepspeed {source}={value!r} -> train.{key}={ours!r}")

    def leave(self, source: str, value: Any, why: str) -> None:
        """Say that one value has no effect."""
        self.lines.append(f"deepspeed {source}={value!r}: {why}, left out")

    def refuse(self, source: str, problem: str) -> None:
        self.problems.append(f"{self.at}.{source}: {problem}")

    def flat(self, section: Mapping[str, Any], source: str = "") -> Iterator[tuple[str, Any]]:
        """Yield each setting with its path; what should be a section and is none is refused."""
        for name, value in section.items():
            path = f"{source}{name}"
            if "." in str(name):  # its path would be that of a setting in a section
                self.refuse(path, "unknown key; write a setting into its section, without a dot")
            elif path not in _SECTIONS:
                yield path, value
            elif isinstance(value, Mapping):
                yield from self.flat(value, f"{path}.")
            elif value is not None or not source:
                self.refuse(path, f"got {value!r}, expected a mapping")

    def take(self, path: str, value: Any) -> None:
        """Take over one setting where it has a key of ours, else say why it has no effect."""
        section = path.rpartition(".")[0]
        if path in _TAKEN:
            if value == "auto":
                self.lines.append(f"deepspeed {path}='auto': the recipe's value stays")
            else:
                self.put(path, value, _TAKEN[path], value)
        elif path in _CHOICES:
            allowed, expected = _CHOICES[path]
            if value not in allowed:
                self.refuse(path, f"got {value!r}, expected {expected}")
        elif section in KINDS and path == f"{section}.enabled":
            if value is not True:
                self.leave(path, value, "the recipe's dtype stays")
        elif section or path in _LEFT_OUT:
            self.leave(path, value, _SECTIONS.get(section, "no counterpart"))
        else:
            near = difflib.get_close_matches(path, _KNOWN, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(_KNOWN)}"
            self.refuse(path, f"unknown key{hint}")


def map_deepspeed(config: Mapping[str, Any], *, at: str) -> Mapped:
    """Return what a DeepSpeed config says in our keys; ConfigError for what has no meaning here."""
    mapped = Mapped(at)
    said = dict(mapped.flat(config))
    for path, value in said.items():
        mapped.take(path, value)
    on = [kind for kind in KINDS if said.get(f"{kind}.enabled") is True]
    if len(on) == 2:
        mapped.refuse("fp16.enabled", "got true with bf16.enabled true; enable one of them")
    if mapped.problems:
        raise ConfigError("; ".join(mapped.problems))
    stage = said.get("zero_optimization.stage", 0)
    offloads = stage == 3 and "cpu" in map(said.get, _DEVICES)
    strategy = "offload" if offloads else _STAGES[stage]
    mapped.put("zero_optimization.stage", stage, "strategy", strategy)
    for kind in on:
        mapped.put(f"{kind}.enabled", True, "dtype", kind)
    if optimizer := said.get("optimizer.type"):
        mapped.lines.append(f"deepspeed optimizer.type={optimizer!r}: AdamW trains")
    if scheduler := said.get("scheduler.type"):
        mapped.put("scheduler.type", scheduler, "schedule", _SCHEDULERS[scheduler])
    return mapped
