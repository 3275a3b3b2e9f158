"""Original against trained: `--output` as JSON, and beside it the same as one HTML page.

Usage: python -m workloads.evaluate.compare_models --trained-results PATH --original-results PATH
--output comparison_report.json [--metric rougeL] [--resamples 2000] [--confidence 0.95] [--seed 0]
PATH is a result folder, or the inference_results.json in it.
Exit codes: 0 written, 2 a bad option, 65 results that are damaged or not of the same rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError
from workloads.data.manifest import command
from workloads.evaluate.comparison import report
from workloads.evaluate.resampling import Sampling, p_text

_TEMPLATE = "comparison.html.j2"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare two result folders; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m workloads.evaluate.compare_models", description=__doc__
    )
    parser.add_argument("--trained-results", type=Path, required=True, metavar="PATH")
    parser.add_argument("--original-results", type=Path, required=True, metavar="PATH")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--metric", help="what counts as a regression")
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    return command(lambda: _compare(parser.parse_args(arguments)))


def _compare(options: argparse.Namespace) -> None:
    if options.output.suffix != ".json":
        raise ConfigError(f"--output {options.output}: must end in .json; the page is beside it")
    if options.resamples < 1 or not 0 < options.confidence < 1 or options.seed < 0:
        raise ConfigError("--resamples must be over 0, --confidence in 0 to 1, --seed not below 0")
    result = report(
        options.original_results,
        options.trained_results,
        Sampling(resamples=options.resamples, confidence=options.confidence, seed=options.seed),
        metric=options.metric,
    )
    text = json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False)
    atomic.write_text(options.output, text + "\n")
    atomic.write_text(options.output.with_suffix(".html"), render(result))
    for line in lines(result):
        sys.stdout.write(f"{line}\n")


def lines(result: Mapping[str, Any]) -> list[str]:
    """Return the summary for people, one metric a line."""
    confidence = f"{100 * result['sampling']['confidence']:g} %"
    made = [f"{result['num_rows']} rows, intervals of {confidence}"]
    for name, metric in result["metrics"].items():
        before, after, test = metric["original"], metric["trained"], metric["paired"]
        better = percent(metric["improvement_percent"])
        made.append(
            f"{name:<24}{before['mean']:>10.4f} +- {before['std']:<9.4f}->"
            f"{after['mean']:>10.4f} +- {after['std']:<9.4f} {better:>10}"
            f"  difference {test['difference']:+.4f} [{test['low']:+.4f}, {test['high']:+.4f}]"
            f"  p {p_text(test['p_value'], resamples=result['sampling']['resamples'])}"
        )
    made.append(f"better on {result['num_gains']} rows, worse on {result['num_regressions']}")
    return made


def percent(value: float | None) -> str:
    """Return a change as text: `+29.7 %`, or `n/a` where the original is 0."""
    return "n/a" if value is None else f"{value:+.1f} %"


def render(result: Mapping[str, Any]) -> str:
    """Return the page: one file, nothing fetched; equal input gives equal bytes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    environment.filters["p_text"] = p_text
    return environment.get_template(_TEMPLATE).render(result=result)


if __name__ == "__main__":
    sys.exit(main())
