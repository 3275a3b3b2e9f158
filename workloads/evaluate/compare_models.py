"""Original against trained: `--output` as JSON, and beside it the same as one HTML page.

Usage: python -m workloads.evaluate.compare_models --trained-results PATH --original-results PATH
--output comparison_report.json [--metric rougeL] [--resamples 2000] [--confidence 0.95] [--seed 0]
PATH is a result folder, or the inference_results.json in it.
Exit codes: 0 written, 2 a bad option, 65 results that are damaged or not of the same rows.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.data.manifest import command, json_lines, read_object
from workloads.evaluate.resampling import Sampling, interval, mean_of, p_text, paired, perplexity_of
from workloads.evaluate.scores import HIGHER_IS_BETTER
from workloads.evaluate.subject import Header, differences, read_header

HEADER, ROWS, SUMMARY = "header.json", "rows.jsonl", "inference_results.json"
"""Files of a result folder."""


def change_percent(before: float, after: float) -> float | None:
    """Return the change from `before` to `after` in percent of it; None where that has no value."""
    if before == 0:
        return 0.0 if after == 0 else None
    return 100 * (after - before) / before


def comparison(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the deltas of two models' values in percent; accuracies in percentage points."""
    drop = change_percent(base["perplexity"], tuned["perplexity"])
    deltas = {
        "perplexity": None if drop is None else -drop,
        "speed": change_percent(base["output_tokens_per_s"], tuned["output_tokens_per_s"]),
        "message_length": change_percent(base["message_length_avg"], tuned["message_length_avg"]),
    }
    for name in base:
        if name.endswith("_accuracy") and name in tuned:
            deltas[f"{name}_points"] = 100 * (tuned[name] - base[name])
    return deltas


FORMAT = 1
PRIMARY = ("argument_accuracy", "relevance_accuracy", "rougeL")
"""The first of these that a row has says whether it got worse."""
_TEXTS = ("id", "category", "prompt_sha256", "input", "reference", "generated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One result folder of an inference job."""

    folder: Path
    header: Header
    rows: Sequence[Mapping[str, Any]]
    losses: Sequence[tuple[float, int]]
    """Nats and label tokens of each tokenised row."""


def read_results(folder: Path) -> Results:
    """Return a result folder, or that of its SUMMARY; what is missing is told with its path."""
    folder = folder.parent if folder.name == SUMMARY else folder
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no folder of results and no {SUMMARY}; run the job inference-original or "
            "inference-trained"
        )
    header_file, rows_file, summary_file = (folder / name for name in (HEADER, ROWS, SUMMARY))
    header = read_header(read_object(header_file), at=header_file)
    rows = [_row(row, at=f"{rows_file}:{number}") for number, row in json_lines(rows_file)]
    summary = read_object(summary_file)
    losses = summary.get("losses")
    if summary.get("num_rows") != len(rows) or not rows:
        raise DataError(
            f"{rows_file}: is damaged: {len(rows)} rows, {summary_file.name} says "
            f"{summary.get('num_rows')}; run the inference job again"
        )
    if not isinstance(losses, list) or not all(map(_is_loss, losses)):
        raise DataError(f"{summary_file}: is damaged: no losses; run the inference job again")
    return Results(
        folder=folder, header=header, rows=rows, losses=[(nats, n) for nats, n in losses]
    )


def _row(row: Any, *, at: str) -> Mapping[str, Any]:
    scores = row.get("scores") if isinstance(row, dict) else None
    if (
        not isinstance(scores, dict)
        or any(not isinstance(row.get(name), str) for name in _TEXTS)
        or any(not _is_finite(value) for value in scores.values())
    ):
        raise DataError(f"{at}: is damaged: expected {', '.join(_TEXTS)} and numbers in scores")
    return row


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is_loss(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_finite, value))


def check_pair(original: Results, trained: Results) -> None:
    """Refuse results of other rows, prompts, models or settings."""
    problems = differences(original.header, trained.header)
    if not problems:
        before, after = (
            [
                (row["id"], row["prompt_sha256"], row["reference"], row["scores"].keys())
                for row in each.rows
            ]
            for each in (original, trained)
        )
        if before != after or len(original.losses) != len(trained.losses):
            problems.append("rows that the header does not tell apart: one was edited")
    if problems:
        raise DataError(
            f"{trained.folder} and {original.folder} cannot be compared: {'; '.join(problems)}; "
            "run inference-original and inference-trained again with one recipe"
        )


def improvement_percent(
    before: float, after: float, *, higher_is_better: bool | None
) -> float | None:
    """Return the change in percent of `before`, positive for better; None where it has no value."""
    change = change_percent(before, after)
    return -change if change is not None and higher_is_better is False else change


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Return mean, standard deviation of the sample (n - 1) and count."""
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "count": len(values),
    }


def metric_report(
    name: str, before: Sequence[float], after: Sequence[float], sampling: Sampling
) -> dict[str, Any]:
    """Return one metric of both models on the same rows."""
    original, trained = mean_of(before), mean_of(after)
    sides = {
        side: spread(values) | asdict(interval(metric, sampling))
        for side, values, metric in (("original", before, original), ("trained", after, trained))
    }
    better = HIGHER_IS_BETTER.get(name)
    return {
        "higher_is_better": better,
        **sides,
        "improvement_percent": improvement_percent(
            sides["original"]["mean"], sides["trained"]["mean"], higher_is_better=better
        ),
        "std_change_percent": change_percent(sides["original"]["std"], sides["trained"]["std"]),
        "paired": asdict(paired(original, trained, sampling)),
    }


def report(
    original_results: Path, trained_results: Path, sampling: Sampling, *, metric: str | None = None
) -> dict[str, Any]:
    """Return the whole comparison; `metric` says what counts as a regression."""
    original, trained = read_results(original_results), read_results(trained_results)
    check_pair(original, trained)
    names = list(dict.fromkeys(name for row in original.rows for name in row["scores"]))
    if metric is not None and metric not in names:
        raise ConfigError(f"--metric {metric}: the rows have {', '.join(names)}")
    pairs = list(zip(original.rows, trained.rows, strict=True))
    regressed = _regressions(pairs, metric)
    return {
        "format": FORMAT,
        "original_results": str(original.folder),
        "trained_results": str(trained.folder),
        "headers": {"original": asdict(original.header), "trained": asdict(trained.header)},
        "sampling": asdict(sampling),
        "num_rows": len(original.rows),
        "perplexity": _perplexity(original, trained, sampling),
        "metrics": {name: metric_report(name, *_scores(pairs, name), sampling) for name in names},
        "categories": _categories(pairs),
        "num_regressions": len(regressed),
        "num_gains": len(_regressions([(after, before) for before, after in pairs], metric)),
        "regressions": regressed,
    }


_Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Each row of the test set as two models answered it; both have the same scores."""


def _scores(pairs: _Pairs, name: str) -> tuple[list[float], list[float]]:
    """Return one score of the rows that have it: of the first model, of the second."""
    having = [pair for pair in pairs if name in pair[0]["scores"]]
    before, after = ([pair[side]["scores"][name] for pair in having] for side in (0, 1))
    return before, after


def _perplexity(original: Results, trained: Results, sampling: Sampling) -> dict[str, Any]:
    before, after = (perplexity_of(*zip(*each.losses, strict=True)) for each in (original, trained))
    return {
        "original": {"value": before.value, **asdict(interval(before, sampling))},
        "trained": {"value": after.value, **asdict(interval(after, sampling))},
        "improvement_percent": improvement_percent(
            before.value, after.value, higher_is_better=False
        ),
        "paired": asdict(paired(before, after, sampling)),
    }


def _categories(pairs: _Pairs) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for before, after in pairs:
        for name, value in before["scores"].items():
            found[before["category"]][name].append((value, after["scores"][name]))
    return {
        category: {
            name: {
                "original_mean": statistics.fmean(before for before, _ in values),
                "trained_mean": statistics.fmean(after for _, after in values),
                "count": len(values),
            }
            for name, values in sorted(metrics.items())
        }
        for category, metrics in sorted(found.items())
    }


def _regressions(pairs: _Pairs, metric: str | None) -> list[dict[str, Any]]:
    worse: list[dict[str, Any]] = []
    for before, after in pairs:
        name = next(
            (each for each in ((metric,) if metric else PRIMARY) if each in before["scores"]), None
        )
        if name is None:
            continue
        was, is_now = before["scores"][name], after["scores"][name]
        if is_now == was or (is_now > was) == HIGHER_IS_BETTER.get(name, True):
            continue
        worse.append(
            {
                "id": before["id"],
                "category": before["category"],
                "metric": name,
                "original": was,
                "trained": is_now,
                "input": before["input"],
                "reference": before["reference"],
                "original_generated": before["generated"],
                "trained_generated": after["generated"],
            }
        )
    return worse


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
