"""Settings of the `train` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from workloads.common.recipe import require

STRATEGIES = ("ddp",)
"""How the trainer can spread a run over ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: tuple[str, ...] = ("all-linear",)

    def __post_init__(self) -> None:
        require(self.rank > 0, f"rank: got {self.rank}, expected > 0")
        require(0 <= self.dropout < 1, f"dropout: got {self.dropout}, expected 0 to below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """One fine-tuning run."""

    dataset: str
    """Folder in the place `data` that prepare-data wrote."""
    method: Literal["lora", "full"] = "lora"
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: Literal["bf16", "fp32"] = "bf16"
    """Type of the weights in the forward pass; trained weights always have an fp32 copy."""
    sequence_length: int = 4096
    """Tokens of one packed row."""
    micro_batch_size: int = 1
    """Packed rows per rank and forward pass."""
    gradient_accumulation: int = 1
    epochs: int | None = None
    max_steps: int | None = None
    """Train steps; exactly one of epochs and max_steps is set."""
    learning_rate: float
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    gradient_checkpointing: bool = False
    seed: int = 0
    checkpoint_every: int = 100
    """Train steps between checkpoints; 0 keeps only those that a signal asks for."""
    keep_last: int = 2
    """Committed checkpoints of this run that stay."""
    resume: str = "requeue"
    """requeue: continue when Slurm or torchrun restarted this job. auto: also from the newest
    earlier run of the job. never. Else a checkpoint folder."""
    overlong: Literal["drop", "refuse"] = "refuse"
    """What happens to a conversation longer than sequence_length."""
    strategy: Literal["auto", "ddp"] = "auto"
    """How the run is spread over ranks; auto follows the plan that was shipped with the job."""
    cpu_threads: int | None = None
    """Threads per rank on CPU; None leaves torch's choice."""

    def __post_init__(self) -> None:
        for name in ("sequence_length", "micro_batch_size", "gradient_accumulation", "keep_last"):
            value = getattr(self, name)
            require(value > 0, f"{name}: got {value}, expected > 0")
        for name in ("warmup_steps", "weight_decay", "checkpoint_every"):
            value = getattr(self, name)
            require(value >= 0, f"{name}: got {value}, expected >= 0")
        require(self.learning_rate > 0, f"learning_rate: got {self.learning_rate}, expected > 0")
        require(self.max_grad_norm > 0, f"max_grad_norm: got {self.max_grad_norm}, expected > 0")
        require(
            (self.epochs is None) != (self.max_steps is None),
            f"max_steps: got {self.max_steps} with epochs {self.epochs}; set exactly one of them",
        )
        for name in ("epochs", "max_steps"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name}: got {value}, expected > 0")
