"""The evaluation job: base and tuned model on the same held-out rows.

Prints the result as JSON on stdout, which jq reads from `<logs>/evaluate_<job id>.out` too, and
writes `<results>/<job id>/evaluation.json`. With `evaluate.precisions` one model is measured again
in 16, 8 and 4 bits a weight: memory, quality and speed; NOT RUN with the reason where bitsandbytes
or the device cannot do it. The jobs inference_original and inference_trained measure one model each
into `<results>/original/` and `<results>/trained/`, which compare_models reads: header.json,
rows.jsonl and the sums in inference_results.json, there whole or not at all. The two share no file,
so a cluster with room runs them side by side.
Usage: python -m workloads.evaluate --recipe bfcl_smollm2 [--set evaluate.num_rows=6]
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from workloads.common import atomic, hardware
from workloads.common.dist import world
from workloads.common.log import log, tell
from workloads.common.models import torch_dtype
from workloads.common.places import Places
from workloads.data.chats import Chat
from workloads.evaluate.compare_models import HEADER, ROWS, SUMMARY, change_percent, comparison
from workloads.evaluate.held_out import Context, HeldOut, context, prompt_hash
from workloads.evaluate.resampling import Measured, Sampling, interval, paired
from workloads.evaluate.scores import measured, row_scores
from workloads.evaluate.subject import Header, Subject, load_precision, tuned_dir
from workloads.job import Job, end, run_job, section
from workloads.recipes.evaluate import EvaluateConfig
from workloads.train.run_folder import EVALUATED, point

if TYPE_CHECKING:
    from workloads.evaluate.generate import ModelRows


@contextmanager
def _begun(job: Job, **is_tuned: bool) -> Iterator[tuple[Context, list[Subject]]]:
    """Yield what the named models share, and the models; the settings lie beside the record."""
    config = section(job.recipe, EvaluateConfig)
    model_dir = job.places.model_dir(job.recipe.model)
    job.places.data_path(config.dataset)
    tuned = tuned_dir(job, config) if any(is_tuned.values()) else None
    with world(cpu_threads=config.cpu_threads) as ranks:
        # Rank 0 hashes weights and measures speeds alone, and rows differ in how long they take.
        here = replace(ranks.apart(), device=ranks.device)
        job.record.hardware = hardware.detect_for(config.dtype, remedy="evaluate.dtype: fp32")
        job.record.engine = "transformers"
        if here.is_main:
            own = {"recipe": job.recipe.name, "model": job.recipe.model, "evaluate": asdict(config)}
            job.keep("config", "config.json", json.dumps(own, indent=2) + "\n")
        yield (
            context(job, config, here, tuned),
            [
                Subject(name=name, model_dir=model_dir, tuned_dir=tuned if has_tuned else None)
                for name, has_tuned in is_tuned.items()
            ],
        )
        here.barrier()


def main(job: Job) -> None:
    """Evaluate both models and print the comparison."""
    with _begun(job, base=False, tuned=True) as (shared, (base, tuned)):
        config, held_out, sampling = shared.config, shared.held_out, shared.sampling
        before, base_model, base_header = _result(shared, base)
        after, tuned_model, tuned_header = _result(shared, tuned)
        result = {
            "base_model": base_model,
            "finetuned_model": tuned_model,
            "comparison": comparison(base_model, tuned_model),
            "significance": _significance(before, after, sampling),
            "sampling": asdict(sampling),
            "test_set": {
                "num_rows": len(held_out.chats),
                "num_perplexity_rows": len(held_out.examples),
                "overlap": {folder: list(ids) for folder, ids in held_out.overlap.items()},
                "overlap_forced": bool(held_out.overlap),
            },
            "headers": {"base": asdict(base_header), "tuned": asdict(tuned_header)},
        }
        if config.precisions:
            subject = tuned if config.precision_model == "tuned" else base
            result["precisions"] = compare_precisions(subject, shared, job.places)
        _record(job, config, result)
        if shared.here.is_main:
            text = json.dumps(result, indent=2, ensure_ascii=False)
            job.keep("evaluation", "evaluation.json", text + "\n")
            assert tuned.tuned_dir is not None
            job.record.artifacts["adapter_dir"] = str(tuned.tuned_dir)
            point(job.places.path("chkpt") / EVALUATED, tuned.tuned_dir)
            tell(text)


def _record(job: Job, config: EvaluateConfig, result: dict[str, Any]) -> None:
    record = job.record
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


def _result(
    shared: Context, subject: Subject
) -> tuple[dict[str, Measured], dict[str, Any], Header]:
    """Return one model's metrics, its object of the result file, and what it was made from."""
    config, held_out = shared.config, shared.held_out
    log(f"{subject.name}: loading")
    model = subject.load(torch_dtype(config.dtype), shared.here)
    header = shared.header(subject)
    rows, metrics, speed = _measure(subject.name, model, shared, header)
    del model
    gc.collect()
    log(f"{subject.name}: perplexity {metrics['perplexity'].value:.4f}")
    samples = [
        {
            "input": held_out.question(i),
            "reference": held_out.references[i],
            "generated": rows.generated[i],
        }
        for i in held_out.sampled(config.num_samples, seed=config.seed)
    ]
    told = {
        **_values(metrics),
        **speed,
        "num_rows": len(rows.generated),
        "intervals": _intervals(metrics, shared.sampling),
        "sample_generations": samples,
    }
    return metrics, told, header


def _measure(
    name: str, model: Any, shared: Context, header: Header
) -> tuple[ModelRows, dict[str, Measured], dict[str, float]]:
    """Return the rows of a loaded model, its metrics and its speeds."""
    # It reads torch, for longer than a job may be silent: not before never_silent has begun.
    from workloads.evaluate.generate import run_rows, speeds

    rows = run_rows(name, model, shared, header)
    return rows, measured(shared.held_out, rows), speeds(name, model, shared)


def _values(metrics: Mapping[str, Measured]) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items()}


def _intervals(metrics: Mapping[str, Measured], sampling: Sampling) -> dict[str, Any]:
    return {name: asdict(interval(metric, sampling)) for name, metric in metrics.items()}


def _significance(
    base: Mapping[str, Measured], tuned: Mapping[str, Measured], sampling: Sampling
) -> dict[str, Any]:
    """Return the paired test of every metric that both models have, tuned minus base."""
    names = [name for name in base if name in tuned]
    return {name: asdict(paired(base[name], tuned[name], sampling)) for name in names}


def compare_precisions(subject: Subject, shared: Context, places: Places) -> dict[str, Any]:
    """Return one object a precision: outcome PASS with its numbers, or NOT RUN with the reason."""
    config, here, sampling = shared.config, shared.here, shared.sampling
    results: dict[str, Any] = {}
    reference: dict[str, Measured] = {}
    scratch = places.path("scratch" if places.has("scratch") else "results")
    for precision in config.precisions:
        model: Any = None
        problem = None
        try:
            model = load_precision(subject, precision, here, scratch)
            _probe(model, shared.held_out)
        except (ImportError, RuntimeError, ValueError) as error:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        problems = [each for each in here.gather(problem) if each]
        if problems:
            log(f"{precision}: NOT RUN: {problems[0]}")
            results[precision] = {"outcome": "NOT RUN", "reason": problems[0]}
            continue
        header = shared.header(subject, precision=f"{precision} weights, {model.device.type}")
        _, found, speed = _measure(f"{subject.name} {precision}", model, shared, header)
        del speed["batch_prefill_tokens_per_s"]
        result = {
            "outcome": "PASS",
            **_values(found),
            "weight_bytes": int(model.get_memory_footprint()),
            **speed,
            "intervals": _intervals(found, sampling),
        }
        del model
        gc.collect()
        results[precision] = result
        if not reference:
            reference = found
            continue
        base = results[config.precisions[0]]
        result["against_bf16"] = {
            "weight_bytes_percent": change_percent(base["weight_bytes"], result["weight_bytes"]),
            "speed_percent": change_percent(
                base["output_tokens_per_s"], result["output_tokens_per_s"]
            ),
            "significance": _significance(reference, found, sampling),
        }
    return results


def _probe(model: Any, held_out: HeldOut) -> None:
    """Raise where the device lacks a kernel for this model: only a pass shows it.

    bitsandbytes' 4-bit kernel for CPUs wants widths that are multiples of its blocks of 64.
    """
    import torch

    with torch.inference_mode():
        for ids in (held_out.prompts[0][:8], held_out.prompts[0][:1]):
            model(input_ids=torch.tensor([list(ids)], device=model.device))


def run_inference(job: Job, side: Literal["original", "trained"]) -> None:
    """Answer every held-out row with the original or the trained model."""
    with _begun(job, **{side: side == "trained"}) as (shared, (subject,)):
        from workloads.evaluate.generate import run_rows

        held_out = shared.held_out
        header = shared.header(subject)
        model = subject.load(torch_dtype(shared.config.dtype), shared.here)
        rows = run_rows(side, model, shared, header)
        metrics = measured(held_out, rows)
        summary = {
            **_values(metrics),
            "num_rows": len(rows.generated),
            "intervals": _intervals(metrics, shared.sampling),
            "overlap": {folder: list(ids) for folder, ids in held_out.overlap.items()},
            "losses": [list(loss) for loss in rows.losses],
        }
        job.record.metrics |= {k: v for k, v in summary.items() if isinstance(v, (int, float))}
        if shared.here.is_main:
            folder = shared.results / side
            with atomic.new_directory(folder, replace=True) as partial:
                _write_json(partial / HEADER, asdict(header))
                lines = [json.dumps(line, ensure_ascii=False) for line in row_lines(held_out, rows)]
                (partial / ROWS).write_text(
                    "".join(f"{line}\n" for line in lines), encoding="utf-8"
                )
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


if __name__ == "__main__":
    end(run_job("evaluate", main))
