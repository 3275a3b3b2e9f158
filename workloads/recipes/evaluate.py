"""Settings of the `evaluate` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workloads.recipes.reader import require, require_over

Precision = Literal["bf16", "8bit", "4bit"]


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
    resamples: int = 2000
    """Bootstrap resamples and permutations; the error of a p near 0.05 is then 0.005."""
    confidence: float = 0.95
    """Share that the intervals hold."""
    force_overlap: bool = False
    """Go on, and mark the result, where a test row is also in a training set."""
    terms: tuple[str, ...] = ()
    """Words of the domain, such as "interest rate", for `term_recall`: how many of those that the
    reference has an answer uses."""
    precisions: tuple[Precision, ...] = ()
    """Weights in which one model is measured again; `bf16` is what the others are compared with."""
    precision_model: Literal["base", "tuned"] = "tuned"
    lm_eval_tasks: tuple[str, ...] = ()
    """Tasks of the job workloads.evaluate.lm_eval_job."""
    lm_eval_limit: int | None = None
    """Rows of each task; None takes all."""

    def __post_init__(self) -> None:
        require_over(self, 0, "num_rows", "num_perplexity_rows", "batch_size", "max_new_tokens")
        require_over(self, 0, "resamples")
        require_over(self, 1, "num_speed_tokens")
        require(0 < self.confidence < 1, f"confidence: got {self.confidence}, expected 0 to 1")
        require(
            all(map(str.strip, self.terms)) and len(set(self.terms)) == len(self.terms),
            f"terms: got {list(self.terms)}, expected words, each once",
        )
        require(
            not self.precisions or self.precisions[0] == "bf16",
            f"precisions: got {', '.join(self.precisions)}, expected bf16 first: the others are "
            "compared with it",
        )
        require(
            len(set(self.precisions)) == len(self.precisions),
            f"precisions: got {', '.join(self.precisions)}, expected each once",
        )
