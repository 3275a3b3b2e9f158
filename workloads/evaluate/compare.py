"""The evaluation result in the shape of the first seed document, and its deltas.

Owns signs and formulas: a perplexity drop is positive; speed and message length are changes against
the base model in percent. Message length is in characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workloads.evaluate.resampling import Measured, Sampling, interval, paired

if TYPE_CHECKING:
    from workloads.evaluate.generate import Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """One model on the held-out rows."""

    measured: Mapping[str, Measured]
    """Metrics over rows, by name."""
    alone: Speed
    batched: Speed
    num_rows: int
    samples: Sequence[dict[str, str]]

    def to_json(self, sampling: Sampling) -> dict[str, Any]:
        """Return the object of one model: values, their intervals, samples."""
        return {
            **{name: metric.value for name, metric in self.measured.items()},
            "output_tokens_per_s": self.alone.output_tokens_per_s,
            "batch_output_tokens_per_s": self.batched.output_tokens_per_s,
            "prefill_tokens_per_s": self.alone.prefill_tokens_per_s,
            "batch_prefill_tokens_per_s": self.batched.prefill_tokens_per_s,
            "num_rows": self.num_rows,
            "intervals": {
                name: interval(metric, sampling).to_json() for name, metric in self.measured.items()
            },
            "sample_generations": list(self.samples),
        }


def change_percent(before: float, after: float) -> float | None:
    """Return the change from `before` to `after` in percent of it; None where that has no value."""
    if before == 0:
        return 0.0 if after == 0 else None
    return 100 * (after - before) / before


def comparison(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the deltas of two `to_json` objects in percent; accuracies in percentage points."""
    drop = change_percent(base["perplexity"], tuned["perplexity"])
    deltas = {
        "perplexity": None if drop is None else -drop,
        "speed": change_percent(base["output_tokens_per_s"], tuned["output_tokens_per_s"]),
        "message_length": change_percent(base["message_length_avg"], tuned["message_length_avg"]),
    }
    for name in base:
        if name.endswith("_accuracy") and name in tuned:
            deltas[f"{name}_points"] = 100 * (tuned[name] - base[name])
    return deltas


def significance(base: ModelResult, tuned: ModelResult, sampling: Sampling) -> dict[str, Any]:
    """Return the paired test of every metric that both models have, tuned minus base."""
    return {
        name: paired(metric, tuned.measured[name], sampling).to_json()
        for name, metric in base.measured.items()
        if name in tuned.measured
    }


def evaluation(base: ModelResult, tuned: ModelResult, sampling: Sampling) -> dict[str, Any]:
    """Return the result of both models."""
    before, after = base.to_json(sampling), tuned.to_json(sampling)
    return {
        "base_model": before,
        "finetuned_model": after,
        "comparison": comparison(before, after),
        "significance": significance(base, tuned, sampling),
        "sampling": {
            "resamples": sampling.resamples,
            "confidence": sampling.confidence,
            "seed": sampling.seed,
        },
    }
