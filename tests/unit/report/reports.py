"""A state folder as three jobs of the local stack leave it, with text that tries to be markup."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOSTILE = "<script>alert('x')</script><img src=https://example.com/x.png onerror=alert(1)>"


def record(kind: str, job_id: str, **changes: Any) -> dict[str, Any]:
    """One run record."""
    return {
        "schema_version": 1,
        "kind": kind,
        "job_id": job_id,
        "job": {"train": "finetune"}.get(kind, kind),
        "stack": "local",
        "code_hash": "0123456789abcdef",
        "git_revision": None,
        "started_at": "2026-11-21T05:00:00Z",
        "finished_at": f"2026-11-21T05:0{job_id}:30Z",
        "outcome": "PASS",
        "reason": None,
        "hardware": {
            "platform": "gpu-l40s-d",
            "preset": "2gpu-64vcpu-384gb",
            "device": "cpu",
            "num_nodes": 2,
            "num_gpus_declared": 2,
        },
        "versions": {"python": "3.11.7"},
        "engine": "transformers" if kind == "evaluate" else None,
        "model": "SmolLM2-135M-Instruct",
        "recipe": "bfcl_smollm2",
        "world_size": 2,
        "metrics": {"train_tokens_per_s": 387.4} if kind == "train" else {},
        "artifacts": {},
        **changes,
    }


def write_runs(state: Path, *, hostile: str = "") -> None:
    """Three pulled jobs under `state`; `hostile` goes wherever a model or a user writes text."""
    speed = {"output_tokens_per_s": 11.83, "batch_output_tokens_per_s": 41.0, "batch_size": 8}
    write_record(state, record("prepare-data", "1"))
    train = write_record(state, record("train", "2", recipe=f"lora{hostile}"))
    losses = [f'{{"step": {step}, "loss": {2.0 - step / 10}}}' for step in range(12)]
    (train / "loss_curve.jsonl").write_text("\n".join([*losses, '{"step": 12, "lo']))
    tested = write_record(state, record("evaluate", "3", metrics=speed, reason=hostile or None))
    (tested / "evaluation.json").write_text(json.dumps(evaluation(hostile)))


def write_record(state: Path, values: dict[str, Any]) -> Path:
    """One record in its folder."""
    folder = state / "runs" / "local" / values["job_id"]
    folder.mkdir(parents=True)
    (folder / "run_record.json").write_text(json.dumps(values))
    return folder


def evaluation(hostile: str = "") -> dict[str, Any]:
    """The result in the shape of seed 000."""

    def model(perplexity: float, accuracy: float, text: str) -> dict[str, Any]:
        sample = {"input": f"Question{hostile}", "reference": f"r{hostile}", "generated": text}
        return {
            "perplexity": perplexity,
            "function_name_accuracy": accuracy,
            "message_length_avg": 125.1,
            "output_tokens_per_s": 11.83,
            "sample_generations": [sample],
        }

    return {
        "base_model": model(7.033111572265625, 0.125, f"base says{hostile}"),
        "finetuned_model": model(4.704128742218018, 0.9583, f"tuned says{hostile}"),
        "comparison": {"perplexity": 33.11454405517637},
    }
