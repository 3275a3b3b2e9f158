"""State folders with runs in them, as pulls leave them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.reports.runs.run import Run, read_runs
from tests.unit.report.reports import record, write_record

RECIPE = {
    "description": "a test",
    "model": "SmolLM2-135M-Instruct",
    "train": {"method": "lora", "seed": 7, "learning_rate": 0.001, "lora": {"rank": 8}},
}
COMMIT = "c" * 40
DATA_HASH = "d" * 64


def write_run(
    state: Path,
    job_id: str,
    *,
    recipe: dict[str, Any] | None = RECIPE,
    losses: Sequence[float] = (2.0, 1.5, 1.25),
    cluster: str | None = None,
    **changes: Any,
) -> Path:
    """One training run in its folder."""
    values = {
        "git_revision": COMMIT,
        "data_hash": DATA_HASH,
        "artifacts": {"data_file": "/mnt/data/prepared/t/tokens_train.parquet"},
        "metrics": {"train_tokens_per_s": 400.0, "last_loss": losses[-1] if losses else 0.0},
    }
    folder = write_record(state, record("train", job_id, **{**values, **changes}))
    if recipe is not None:
        (folder / "recipe.json").write_text(json.dumps(recipe))
    lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses)]
    (folder / "loss_curve.jsonl").write_text("\n".join(lines) + "\n")
    if cluster is not None:
        submission = {
            "stack": "local",
            "job": "finetune",
            "job_id": job_id,
            "code_hash": values.get("code_hash", "0123456789abcdef"),
            "sets": [],
            "after": None,
            "log_path": "/mnt/logs/finetune.out",
            "submitted_at": "2026-11-21T04:59:00+00:00",
            "cluster": cluster,
        }
        (folder / "submission.json").write_text(json.dumps(submission))
    return folder


def runs(state: Path, **given: Any) -> tuple[Run, ...]:
    """Every run of the stack `local` under `state`."""
    told = {"rates": None, "entries": (), "say": lambda _: None, **given}
    return read_runs(state, "local", **told)
