"""The evaluation result in the shape of the first seed document, and its deltas.

Owns signs and formulas: a perplexity drop is positive; speed and message length are changes against
the base model in percent. Message length is in characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """One model on the held-out rows."""

    perplexity: float
    generated: Sequence[str]
    output_tokens_per_s: float
    """Decode speed of one stream."""
    batch_output_tokens_per_s: float
    prefill_tokens_per_s: float
    """Prompt tokens read a second, one prompt alone."""
    batch_prefill_tokens_per_s: float
    function_name_accuracy: float | None
    """Share of rows, 0 to 1; None when no row has a possible answer."""
    argument_accuracy: float | None
    """Share of rows whose whole call is right, 0 to 1."""
    samples: Sequence[dict[str, str]]

    @property
    def message_length_avg(self) -> float:
        """Mean length of a generated message in characters."""
        return sum(map(len, self.generated)) / len(self.generated)

    def to_json(self) -> dict[str, Any]:
        """Return the object of one model."""
        values: dict[str, Any] = {
            "perplexity": self.perplexity,
            "message_length_avg": self.message_length_avg,
            "output_tokens_per_s": self.output_tokens_per_s,
            "batch_output_tokens_per_s": self.batch_output_tokens_per_s,
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "batch_prefill_tokens_per_s": self.batch_prefill_tokens_per_s,
            "num_rows": len(self.generated),
        }
        if self.function_name_accuracy is not None:
            values["function_name_accuracy"] = self.function_name_accuracy
            values["argument_accuracy"] = self.argument_accuracy
        return {**values, "sample_generations": list(self.samples)}


def change_percent(before: float, after: float) -> float:
    """Return the change from `before` to `after` in percent of `before`; 0 where both are 0."""
    if before == 0:
        return 0.0 if after == 0 else float("inf")
    return 100 * (after - before) / before


def comparison(base: dict[str, Any], tuned: dict[str, Any]) -> dict[str, float]:
    """Return the deltas of two `to_json` objects in percent; accuracies in percentage points."""
    deltas = {
        "perplexity": -change_percent(base["perplexity"], tuned["perplexity"]),
        "speed": change_percent(base["output_tokens_per_s"], tuned["output_tokens_per_s"]),
        "message_length": change_percent(base["message_length_avg"], tuned["message_length_avg"]),
    }
    for name in ("function_name_accuracy", "argument_accuracy"):
        if name in base:
            deltas[f"{name}_points"] = 100 * (tuned[name] - base[name])
    return deltas


def evaluation(base: ModelResult, tuned: ModelResult) -> dict[str, Any]:
    """Return the whole result."""
    before, after = base.to_json(), tuned.to_json()
    return {
        "base_model": before,
        "finetuned_model": after,
        "comparison": comparison(before, after),
    }
