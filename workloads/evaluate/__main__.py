"""The evaluation job: base and tuned model on the same held-out rows.

Prints the result as JSON on stdout, which jq reads from `<logs>/evaluate_<job id>.out` too, and
writes `<results>/<job id>/evaluation.json`.
Usage: python -m workloads.evaluate --recipe bfcl_smollm2 [--set evaluate.num_rows=6]
"""

from __future__ import annotations

import gc
import json
from dataclasses import asdict
from typing import Any

from workloads.common import atomic, hardware
from workloads.common.dist import World, world
from workloads.common.log import log, tell
from workloads.evaluate.comparison import ModelResult, evaluation
from workloads.evaluate.held_out import Context, context
from workloads.evaluate.precisions import compare_precisions
from workloads.evaluate.scores import measured
from workloads.evaluate.subject import Header, Subject, tuned_dir
from workloads.job import Job, end, run_job, section
from workloads.recipes.evaluate import EvaluateConfig
from workloads.train.run_folder import publish_evaluated


def main(job: Job) -> None:
    """Evaluate both models and print the comparison."""
    config = section(job.recipe, EvaluateConfig)
    model_dir = job.places.model_dir(job.recipe.model)
    job.places.data_path(config.dataset)
    subjects = (
        Subject(name="base", model_dir=model_dir, tuned_dir=None),
        Subject(name="tuned", model_dir=model_dir, tuned_dir=tuned_dir(job, config)),
    )
    with world(cpu_threads=config.cpu_threads) as here:
        job.record.hardware = hardware.detect(hardware.device_name())
        keep_config(job, config, here)
        _evaluate(job, config, here, *subjects)


def keep_config(job: Job, config: EvaluateConfig, here: World) -> None:
    """Write the settings in force beside the record."""
    if here.is_main:
        values = {"recipe": job.recipe.name, "model": job.recipe.model, "evaluate": asdict(config)}
        path = job.results_dir / "config.json"
        atomic.write_text(path, json.dumps(values, indent=2) + "\n")
        job.record.artifacts["config"] = str(path)


def _evaluate(job: Job, config: EvaluateConfig, here: World, base: Subject, tuned: Subject) -> None:
    shared = context(job, config, here, tuned.tuned_dir)
    held_out = shared.held_out
    before, base_header = _result(shared, base)
    after, tuned_header = _result(shared, tuned)
    result = evaluation(before, after, shared.sampling)
    result["test_set"] = {
        "num_rows": len(held_out.chats),
        "num_perplexity_rows": len(held_out.examples),
        "overlap": {folder: list(ids) for folder, ids in held_out.overlap.items()},
        "overlap_forced": bool(held_out.overlap),
    }
    result["headers"] = {"base": asdict(base_header), "tuned": asdict(tuned_header)}
    if config.precisions:
        subject = tuned if config.precision_model == "tuned" else base
        result["precisions"] = compare_precisions(subject, shared, job.places)
    _record(job, config, result)
    if here.is_main:
        text = json.dumps(result, indent=2, ensure_ascii=False)
        path = job.results_dir / "evaluation.json"
        atomic.write_text(path, text + "\n")
        assert tuned.tuned_dir is not None
        job.record.artifacts |= {"evaluation": str(path), "adapter_dir": str(tuned.tuned_dir)}
        publish_evaluated(job.places.path("chkpt"), tuned.tuned_dir)
        tell(text)
    here.barrier()


def _record(job: Job, config: EvaluateConfig, result: dict[str, Any]) -> None:
    record = job.record
    record.engine = "transformers"
    record.metrics |= {
        "batch_size": config.batch_size,
        "num_rows": result["test_set"]["num_rows"],
        "num_perplexity_rows": result["test_set"]["num_perplexity_rows"],
        "num_overlapping_rows": sum(map(len, result["test_set"]["overlap"].values())),
    }
    for prefix, name in (("", "finetuned_model"), ("base_", "base_model")):
        record.metrics |= {
            f"{prefix}{metric}": value
            for metric, value in result[name].items()
            if isinstance(value, float)
        }


def _result(shared: Context, subject: Subject) -> tuple[ModelResult, Header]:
    """Return the result of one model and what it was made from."""
    # It reads torch, for longer than a job may be silent: not before never_silent has begun.
    from workloads.evaluate.generate import run_rows, speeds

    config, held_out = shared.config, shared.held_out
    log(f"{subject.name}: loading")
    model = subject.load(config, shared.here)
    header = shared.header(subject)
    rows = run_rows(subject.name, model, shared, header)
    alone, batched = speeds(subject.name, model, shared)
    del model
    gc.collect()
    metrics = measured(held_out, rows)
    log(f"{subject.name}: perplexity {metrics['perplexity'].value:.4f}")
    references = held_out.references()
    return (
        ModelResult(
            measured=metrics,
            alone=alone,
            batched=batched,
            num_rows=len(rows.generated),
            samples=[
                {
                    "input": held_out.question(i),
                    "reference": references[i],
                    "generated": rows.generated[i],
                }
                for i in held_out.sampled(config.num_samples, seed=config.seed)
            ],
        ),
        header,
    )


if __name__ == "__main__":
    end(run_job("evaluate", main))
