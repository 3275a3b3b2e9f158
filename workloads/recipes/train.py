"""Section `train` of a recipe: every key, its default, and the mixes that are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from workloads.recipes.reader import require, require_least, require_over


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """How state is saved, kept and taken up again; how often is train.checkpoint_every."""

    background: bool = True
    """Whether files are written while training goes on, from one copy in host memory."""
    keep_best: bool = True
    """Whether train.eval's best checkpoint stays beyond train.keep_last and becomes final/."""
    elastic_every: int = 0
    """Train steps between elastic checkpoints; 0: only before the job changes its size."""
    every_s: int = 0
    """Seconds after which training is saved again, beside its schedule by steps; 0: never.

    What is lost at most where a save takes longer than the notice of a node that is taken."""
    same_world_size_only: bool = False
    """Whether a sharded checkpoint of another world size is refused instead of resharded."""
    timeout_s: int = 600
    """Seconds after which a rank that is not heard of is lost, and a step that stands is hung."""

    def __post_init__(self) -> None:
        require_least(self, 0, "elastic_every", "every_s")
        require_least(self, 10, "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """Validation while training, on rows that the data set holds out; also after the last step."""

    every: int | None = None
    """Train steps between validations; exactly one of every and every_epochs is set."""
    every_epochs: int | None = None
    rows: int = 512
    """Conversations at most: the last of the held-out file, as evaluate reads the first."""
    patience: int | None = None
    """Validations in a row without a new lowest loss that end the run; None: no early end."""

    def __post_init__(self) -> None:
        require_over(self, 0, "every", "every_epochs", "rows", "patience")
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
class LoraConfig:
    """Low-rank adapters."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ("all-linear",)
    dora: bool = False
    """Train the length of each weight's columns apart from their direction (DoRA)."""

    def __post_init__(self) -> None:
        require_over(self, 0, "rank", "alpha")
        require(0 <= self.dropout < 1, f"dropout: got {self.dropout}, expected 0 to below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """What a run must reach to pass, beside ending with 0, `final/` and no lack of memory."""

    max_loss: float | None = None
    """Nats per label token: of the held-out rows with train.eval, else of the last step."""
    min_tokens_per_s_per_gpu: float | None = None
    """Useful tokens; judged on GPUs only."""

    def __post_init__(self) -> None:
        require_over(self, 0, "max_loss", "min_tokens_per_s_per_gpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
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
    sequence_length: int = 4096
    """Tokens of one packed row."""
    packing: bool = True
    """Several conversations share a row; False: one row each, padded to the longest of its step."""
    micro_batch_size: int = 1
    """Packed rows per rank and forward pass."""
    gradient_accumulation: int = 1
    epochs: int | None = None
    max_steps: int | None = None
    """Train steps; exactly one of epochs and max_steps is set."""
    learning_rate: float
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool | int | None = None
    """Recompute activations in the backward pass: of all layers, of none, or of so many, the first
    ones; None: of as few as the job's plan needs to fit."""
    loss_chunk_tokens: int = LOSS_CHUNK_TOKENS
    """Label tokens whose logits exist at once; 0: all of a micro batch."""
    attention: Literal["auto", "varlen", "sdpa"] = "auto"
    """varlen: each document alone, by torch's kernel for packed rows. sdpa: a dense mask of
    documents. auto: varlen on a GPU in 16 bits where the model allows it."""
    compile: bool | None = None
    """Compile each layer; None: on a GPU where a C compiler is."""
    liger: Literal["auto", "on", "off"] = "auto"
    """auto: Liger's kernels on a GPU where they can be imported."""
    seed: int = 0
    checkpoint_every: int = 100
    """Train steps between checkpoints; 0 keeps only those that a signal asks for."""
    checkpoint_every_epochs: int | None = None
    """Epochs between checkpoints, instead of checkpoint_every, which then has no effect."""
    keep_last: int = 2
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
    cpu_threads: int | None = None
    """Threads per rank on CPU; None leaves torch's choice."""

    def __post_init__(self) -> None:
        require_over(self, 0, "sequence_length", "micro_batch_size", "gradient_accumulation")
        require_over(self, 0, "keep_last", "learning_rate", "max_grad_norm", "epochs", "max_steps")
        require_over(self, 0, "checkpoint_every_epochs", "cpu_threads")
        require_least(self, 0, "warmup_steps", "weight_decay", "checkpoint_every")
        require_least(self, 0, "loss_chunk_tokens", "gradient_checkpointing")
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
