"""Settings of the `evaluate` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from workloads.recipes.reader import Bound, Positive, Settings, over, require

Precision = Literal["bf16", "8bit", "4bit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig(Settings):
    """Base and tuned model on the same held-out rows."""

    dataset: str
    """Folder in the place `data` that prepare-data wrote."""
    adapter: str = "{place:chkpt}/latest"
    """Adapter folder, or the pointer file that train writes."""
    num_rows: Positive[int] = 24
    """Held-out rows that both models answer."""
    num_perplexity_rows: Positive[int] = 60
    num_samples: int = 5
    """Generations printed in full."""
    batch_size: Positive[int] = 8
    max_new_tokens: Positive[int] = 96
    num_speed_tokens: Annotated[int, over(1)] = 32
    """Tokens decoded per stream to measure speed."""
    seed: int = 0
    dtype: Literal["bf16", "fp32"] = "bf16"
    cpu_threads: int | None = None
    """Threads per rank on CPU; None leaves torch's choice."""
    resamples: Positive[int] = 2000
    """Bootstrap resamples and permutations; the error of a p near 0.05 is then 0.005."""
    confidence: Annotated[float, Bound("0 to 1", lambda value: 0 < value < 1)] = 0.95
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

    def _check(self) -> None:
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
