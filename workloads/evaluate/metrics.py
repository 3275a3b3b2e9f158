"""From rows to metrics: which there are, which way is better, and how each sums over rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from workloads.evaluate.call_scores import call_scores
from workloads.evaluate.held_out import HeldOut
from workloads.evaluate.model_rows import ModelRows
from workloads.evaluate.resampling import Measured, mean_of, perplexity_of
from workloads.evaluate.text_scores import bleu_of, bleu_parts, text_scores

HIGHER_IS_BETTER: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "perplexity": False,
        "bleu": True,
        "exact_match": True,
        "token_f1": True,
        "rouge1": True,
        "rouge2": True,
        "rougeL": True,
        "repeated_4gram_share": False,
        "function_name_accuracy": True,
        "argument_name_accuracy": True,
        "argument_accuracy": True,
        "relevance_accuracy": True,
        "call_parse_failure": False,
    }
)
"""Metrics with a direction; the length of an answer has none."""
AVERAGED = MappingProxyType({"message_length": "message_length_avg"})


def row_scores(held_out: HeldOut, rows: ModelRows) -> list[dict[str, float]]:
    """Return the scores of every answer by name; a row has those that apply to it."""
    return [
        text_scores(reference, generated) | call_scores(chat, reference, generated)
        for chat, reference, generated in zip(
            held_out.chats, held_out.references(), rows.generated, strict=True
        )
    ]


def measured(held_out: HeldOut, rows: ModelRows) -> dict[str, Measured]:
    """Return every metric of one model over the rows that it applies to."""
    nats, counts = zip(*rows.losses, strict=True)
    made = {"perplexity": perplexity_of(nats, counts)}
    scores = row_scores(held_out, rows)
    for name in dict.fromkeys(name for each in scores for name in each):
        values = [each[name] for each in scores if name in each]
        made[AVERAGED.get(name, name)] = mean_of(values)
    made["bleu"] = bleu_of(
        [
            bleu_parts(reference, generated)
            for reference, generated in zip(held_out.references(), rows.generated, strict=True)
        ]
    )
    return made
