"""Settings of the `evaluate` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.common.recipe import require


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig:
    """Base and tuned model on the same held-out rows."""

    dataset: str
    """Folder in the place `data` that prepare-data wrote."""
    adapter: str = "{place:chkpt}/latest"
    """Adapter folder, or the pointer file that train writes."""
    num_rows: int = 24
    """Held-out rows that both models answer."""
    num_perplexity_rows: int = 60
    num_samples: int = 5
    """Generations printed in full."""
    batch_size: int = 8
    max_new_tokens: int = 96
    num_speed_tokens: int = 32
    """Tokens decoded per stream to measure speed."""
    seed: int = 0
    dtype: Literal["bf16", "fp32"] = "bf16"
    cpu_threads: int | None = None
    """Threads per rank on CPU; None leaves torch's choice."""

    def __post_init__(self) -> None:
        for name in ("num_rows", "num_perplexity_rows", "batch_size", "max_new_tokens"):
            value = getattr(self, name)
            require(value > 0, f"{name}: got {value}, expected > 0")
        require(
            self.num_speed_tokens > 1,
            f"num_speed_tokens: got {self.num_speed_tokens}, expected > 1",
        )
