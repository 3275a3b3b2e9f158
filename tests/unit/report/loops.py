"""A state folder after train, evaluate and load, with numbers that can be worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.cost.loads import load_json, load_values
from tests.unit.report.reports import evaluation, record, write_record

SPEEDS: dict[str, Any] = {
    "batch_size": 8,
    "output_tokens_per_s": 12.0,
    "batch_output_tokens_per_s": 40.0,
    "base_output_tokens_per_s": 10.0,
    "base_batch_output_tokens_per_s": 32.0,
    "message_length_avg": 100.0,
    "base_message_length_avg": 125.0,
}
TESTED = {
    "perplexity": {"difference": -2.329, "low": -2.9, "high": -1.8, "p_value": 0.0005},
    "function_name_accuracy": {"difference": 0.8333, "low": 0.6, "high": 0.95, "p_value": 0.001},
    "message_length_avg": {"difference": 0.0, "low": -9.0, "high": 8.0, "p_value": 0.31},
}


def write_loop(
    state: Path, *, train: bool = True, evaluate: bool = True, load: object = True
) -> None:
    """Training of 10 minutes on 2 nodes, evaluation of 6 on one, and a load test."""
    if train:
        values = record("train", "2", metrics={"train_tokens_per_s": 387.4})
        write_record(state, {**values, "finished_at": "2026-11-21T05:10:00Z"})
    if evaluate:
        values = record("evaluate", "3", metrics=SPEEDS)
        values["hardware"] = {**values["hardware"], "num_nodes": 1}
        folder = write_record(state, {**values, "finished_at": "2026-11-21T05:06:00Z"})
        sampling = {"resamples": 2000, "confidence": 0.95, "seed": 0}
        content = {**evaluation(), "significance": TESTED, "sampling": sampling}
        (folder / "evaluation.json").write_text(json.dumps(content))
    if load:
        values = record("load", "14", engine="transformers")
        values |= {"metrics": load_values()["metrics"], "finished_at": "2026-11-21T06:00:00Z"}
        folder = write_record(state, values)
        content = load_json() if load is True else load
        (folder / "load.json").write_text(json.dumps(content))
