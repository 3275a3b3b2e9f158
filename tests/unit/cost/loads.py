"""Load tests as `soperator runs load` leaves them: a record, and load.json beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cost.run_record import LoadCurve, RunRecord, parse_load_curve
from tests.unit.cost.conftest import RECORD, record

SLO = {"ttft_ms": 5000.0, "tpot_ms": 500.0, "e2e_s": None, "share": 0.99}
SWEEP = ((1, 12.0, 0.4, True), (4, 30.0, 1.9, True), (8, 41.0, 4.2, True), (16, 44.0, 9.7, False))
"""Streams, tokens/s, p99 of TTFT in seconds, whether the SLO is kept."""
TUNED = "SmolLM2-135M-Instruct-tuned"
"""Name in the API of the model that was asked."""
SPEEDS = {
    "output_tokens_per_s": 13.5,
    "prefill_tokens_per_s": 900.0,
    "batch_size": 8,
    "batch_output_tokens_per_s": 52.0,
    "batch_prefill_tokens_per_s": 900.0,
}


def point(
    concurrency: int, tokens_per_s: float, ttft_s: float, keeps: bool | None
) -> dict[str, Any]:
    """One closed loop in the shape of load.json: 2,000 tokens for 8,000."""
    requests_per_s = tokens_per_s / 2000
    good = keeps is not False
    spread = {"p50_ms": 1.0, "p90_ms": 1.0, "mean_ms": 1.0}
    return {
        "loop": "closed",
        "concurrency": concurrency,
        "rate_per_s": None,
        "num_requests": 16,
        "num_ok": 16,
        "output_tokens_per_s": tokens_per_s,
        "requests_per_s": requests_per_s,
        "goodput_requests_per_s": requests_per_s * (1 if good else 0.8),
        "keeps_slo": keeps,
        "mean_prompt_tokens": 8000.0,
        "mean_output_tokens": 2000.0,
        "ttft": {**spread, "p99_ms": 1000 * ttft_s},
        "tpot": {**spread, "p99_ms": 1000 * concurrency / tokens_per_s},
    }


def load_json(
    sweep: Any = SWEEP,
    slo: Mapping[str, Any] = SLO,
    model: str | None = TUNED,
    prompt_tokens: float = 8000.0,
) -> dict[str, Any]:
    """The content of load.json, with an open loop behind the sweep."""
    closed = [{**point(*each), "mean_prompt_tokens": prompt_tokens} for each in sweep]
    arrivals = {**closed[0], "loop": "poisson", "concurrency": None, "rate_per_s": 0.01}
    return {
        "schema_version": 1,
        "model": model,
        "slo": dict(slo),
        "curve": [*closed, arrivals],
    }


def curve(sweep: Any = SWEEP, slo: Mapping[str, Any] = SLO) -> LoadCurve:
    """The curve as cost/ reads it."""
    return parse_load_curve(json.dumps(load_json(sweep, slo)), "load.json")


def load_values(**changes: Any) -> dict[str, Any]:
    """The record of a load test as plain values."""
    operating = {"operating_concurrency": 8, "operating_output_tokens_per_s": 41.0}
    latencies = {"p99_ttft_ms": 4200.0, "p99_tpot_ms": 195.1}
    return {
        "kind": "load",
        "job": "load",
        "job_id": "14",
        "metrics": {**SPEEDS, **operating, **latencies},
        "finished_at": "2026-11-21T06:00:00Z",
        **changes,
    }


def load_record(sweep: Any = SWEEP, slo: Mapping[str, Any] = SLO, **changes: Any) -> RunRecord:
    """The record of a load test with its curve."""
    return replace(record(**load_values(**changes)), curve=curve(sweep, slo))


def write_load(folder: Path, content: object = None, **changes: Any) -> Path:
    """A pulled load test: its record and, as text or values, load.json."""
    folder.mkdir(parents=True)
    (folder / "run_record.json").write_text(json.dumps({**RECORD, **load_values(**changes)}))
    content = load_json() if content is None else content
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "load.json").write_text(text)
    return folder
