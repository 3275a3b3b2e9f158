"""One model over the test set into a result folder of its own: what compare_models reads.

Owns `<results>/original/` and `<results>/trained/`: header.json, rows.jsonl and the sums in
inference_results.json, there whole or not at all. The two jobs share no file, so a cluster with
room runs them side by side.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workloads.common import atomic, hardware
from workloads.common.dist import world
from workloads.common.log import log
from workloads.data.chats import Chat
from workloads.evaluate.__main__ import keep_config
from workloads.evaluate.comparison import HEADER, ROWS, SUMMARY
from workloads.evaluate.held_out import Context, HeldOut, context, prompt_hash
from workloads.evaluate.resampling import interval
from workloads.evaluate.scores import measured, row_scores
from workloads.evaluate.subject import Subject, tuned_dir
from workloads.job import Job, section
from workloads.recipes.evaluate import EvaluateConfig

if TYPE_CHECKING:
    from workloads.evaluate.generate import ModelRows

Side = Literal["original", "trained"]


def run_inference(job: Job, side: Side) -> None:
    """Answer every held-out row with the original or the trained model."""
    config = section(job.recipe, EvaluateConfig)
    model_dir = job.places.model_dir(job.recipe.model)
    tuned = tuned_dir(job, config) if side == "trained" else None
    job.places.data_path(config.dataset)
    with world(cpu_threads=config.cpu_threads) as here:
        job.record.hardware = hardware.detect_for(config.dtype, remedy="evaluate.dtype: fp32")
        job.record.engine = "transformers"
        keep_config(job, config, here)
        subject = Subject(name=side, model_dir=model_dir, tuned_dir=tuned)
        _answer(job, context(job, config, here, tuned), subject)
        here.barrier()


def _answer(job: Job, shared: Context, subject: Subject) -> None:
    from workloads.evaluate.generate import run_rows

    held_out, sampling = shared.held_out, shared.sampling
    header = shared.header(subject)
    rows = run_rows(subject.name, subject.load(shared.config, shared.here), shared, header)
    metrics = measured(held_out, rows)
    summary = {
        **{name: metric.value for name, metric in metrics.items()},
        "num_rows": len(rows.generated),
        "intervals": {name: asdict(interval(m, sampling)) for name, m in metrics.items()},
        "overlap": {folder: list(ids) for folder, ids in held_out.overlap.items()},
        "losses": [list(loss) for loss in rows.losses],
    }
    job.record.metrics |= {k: v for k, v in summary.items() if isinstance(v, (int, float))}
    if not shared.here.is_main:
        return
    folder = shared.results / subject.name
    with atomic.new_directory(folder, replace=True) as partial:
        _write_json(partial / HEADER, asdict(header))
        lines = [json.dumps(line, ensure_ascii=False) for line in row_lines(held_out, rows)]
        (partial / ROWS).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        _write_json(partial / SUMMARY, summary)
    job.record.artifacts["results_dir"] = str(folder)
    log(f"{len(rows.generated)} rows in {folder}")


def row_lines(held_out: HeldOut, rows: ModelRows) -> list[dict[str, Any]]:
    """Return one object a row, in the order of the test set."""
    scores = row_scores(held_out, rows)
    return [
        {
            "id": chat.id,
            "category": category_of(chat),
            "prompt_sha256": prompt_hash(chat).hex(),
            "input": held_out.question(number),
            "reference": reference,
            "generated": rows.generated[number],
            "num_tokens": rows.num_tokens[number],
            "scores": scores[number],
        }
        for number, (chat, reference) in enumerate(
            zip(held_out.chats, held_out.references, strict=True)
        )
    ]


def category_of(chat: Chat) -> str:
    """Return the raw column `category` where data.source.keep has it, else the id's leading part.

    BFCL's ids are `simple_python_12`; ids that are file and line are all of their file.
    """
    named = chat.columns.get("category")
    if named is not None:
        return str(named)
    return re.sub(r"[_:\-]?\d+(-\d+)*$", "", chat.id) or "all"


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
