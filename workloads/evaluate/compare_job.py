"""The job compare: `<results>/trained/` against `<results>/original/`, as compare_models does.

Owns what of the report stands in the run record. Exit 65 where the two are not of the same rows, so
that what waits for the comparison does not start.
"""

from __future__ import annotations

import json

from workloads.common.log import log
from workloads.evaluate.compare_models import lines, render, report
from workloads.evaluate.resampling import Sampling
from workloads.job import Job, end, run_job, section
from workloads.recipes.evaluate import EvaluateConfig

_REPORT = "comparison_report"


def main(job: Job) -> None:
    """Compare what the two inference jobs left; the report lies among this job's results."""
    config = section(job.recipe, EvaluateConfig)
    results = job.places.path("results")
    sampling = Sampling(resamples=config.resamples, confidence=config.confidence, seed=config.seed)
    result = report(results / "original", results / "trained", sampling)
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    job.keep("comparison_report", f"{_REPORT}.json", f"{text}\n")
    job.keep("comparison_page", f"{_REPORT}.html", render(result))
    compared = {**result["metrics"], "perplexity": result["perplexity"]}
    job.record.metrics |= {
        f"{name}_improvement_percent": metric["improvement_percent"]
        for name, metric in compared.items()
        if metric["improvement_percent"] is not None
    }
    for name in ("num_rows", "num_gains", "num_regressions"):
        job.record.metrics[name] = result[name]
    for line in lines(result):
        log(line)


if __name__ == "__main__":
    end(run_job("compare", main))
