"""One model in 16, 8 and 4 bits a weight: memory, quality and speed against 16 bits.

Owns what NOT RUN means here: bitsandbytes or the device cannot do it, with the reason.
"""

from __future__ import annotations

import gc
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workloads.common.log import log
from workloads.evaluate.comparison import change_percent
from workloads.evaluate.held_out import Context, HeldOut
from workloads.evaluate.resampling import Measured, interval, paired
from workloads.evaluate.scores import measured
from workloads.evaluate.subject import Subject, load_precision

if TYPE_CHECKING:
    from workloads.common.places import Places


def compare_precisions(subject: Subject, shared: Context, places: Places) -> dict[str, Any]:
    """Return one object a precision: outcome PASS with its numbers, or NOT RUN with the reason."""
    config, here, sampling = shared.config, shared.here, shared.sampling
    results: dict[str, Any] = {}
    reference: dict[str, Measured] = {}
    scratch = places.path("scratch" if places.has("scratch") else "results")
    for precision in config.precisions:
        model, problem = None, None
        try:
            model = load_precision(subject, precision, config, here, scratch)
            _probe(model, shared.held_out)
        except (ImportError, RuntimeError, ValueError) as error:
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        problems = [each for each in here.gather(problem) if each]
        if problems:
            log(f"{precision}: NOT RUN: {problems[0]}")
            results[precision] = {"outcome": "NOT RUN", "reason": problems[0]}
            continue
        found, values = _measure(subject, model, precision, shared)
        del model
        gc.collect()
        results[precision] = {
            "outcome": "PASS",
            **values,
            "intervals": {k: asdict(interval(v, sampling)) for k, v in found.items()},
        }
        if not reference:
            reference = found
            continue
        base = results[config.precisions[0]]
        results[precision]["against_bf16"] = {
            "weight_bytes_percent": change_percent(base["weight_bytes"], values["weight_bytes"]),
            "speed_percent": change_percent(
                base["output_tokens_per_s"], values["output_tokens_per_s"]
            ),
            "significance": {
                name: asdict(paired(reference[name], found[name], sampling)) for name in found
            },
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


def _measure(
    subject: Subject, model: Any, precision: str, shared: Context
) -> tuple[dict[str, Measured], dict[str, Any]]:
    from workloads.evaluate.generate import run_rows, speeds

    header = shared.header(subject, precision=f"{precision} weights, {model.device.type}")
    name = f"{subject.name} {precision}"
    rows = run_rows(name, model, shared, header)
    alone, batched = speeds(name, model, shared)
    found = measured(shared.held_out, rows)
    return found, {
        **{key: metric.value for key, metric in found.items()},
        "weight_bytes": int(model.get_memory_footprint()),
        "output_tokens_per_s": alone.output_tokens_per_s,
        "batch_output_tokens_per_s": batched.output_tokens_per_s,
        "prefill_tokens_per_s": alone.prefill_tokens_per_s,
    }
