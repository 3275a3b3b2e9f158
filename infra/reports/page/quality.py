"""Quality of base and tuned model from one evaluation, and the charts of the report.

Owns which figures there are, their names, and which way is better. Rows have the paired test of the
evaluation where it has one: `low` and `high` bound the difference, `p_value` says how often chance
does as much, `interval` and `resamples` how wide and how fine that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from cost.report.charts import Axis, Mark, Scale, Series, line_chart
from cost.report.layout import short
from infra.reports.page.training import Moment, signed

_SMOOTHING = 0.6
"""Weight of the past in the moving average: about two and a half steps."""


def loss_curve(
    points: Sequence[tuple[int, float]], held_out: Sequence[tuple[int, float]] = ()
) -> str:
    """Loss per train step with its moving average, and that of held-out rows; needs two points."""
    points = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(points) < 2:
        return ""
    held_out = [(step, loss) for step, loss in held_out if math.isfinite(loss)]
    dots = tuple(Mark(x=x, y=y) for x, y in exact(points))
    steps = points[-1][0] - points[0][0] + 1
    return line_chart(
        "loss",
        title="Loss by train step",
        description=f"Loss from {points[0][1]:.3f} to {points[-1][1]:.3f} over {steps} steps",
        x=Axis(label="train step", scale=Scale.LINEAR, text=short),
        y=Axis(label="loss", scale=Scale.LINEAR, text=short),
        series=[
            Series(name="moving average", points=exact(smooth(points)), style=0),
            Series(name="each step", points=(), style=1, marks=dots),
            *([Series(name="held-out rows", points=exact(held_out), style=2)] if held_out else []),
        ],
    )


def busy_curve(moments: Sequence[Moment]) -> str:
    """Utilisation and memory in use by minute, in percent; needs two moments."""
    if len(moments) < 2:
        return ""
    busy = [(each.minute, each.utilization_percent) for each in moments]
    used = [
        (each.minute, each.memory_percent) for each in moments if each.memory_percent is not None
    ]
    mean = math.fsum(percent for _, percent in busy) / len(busy)
    minutes = max(minute for minute, _ in busy)
    return line_chart(
        "busy",
        title="GPU utilisation over the run",
        description=f"GPU utilisation over {minutes:.0f} minutes, {mean:.1f} percent in the mean",
        x=Axis(label="minute of the job", scale=Scale.LINEAR, text=short),
        y=Axis(label="percent", scale=Scale.LINEAR, text=short, reach=Decimal(0)),
        series=[
            Series(name="mean utilisation of all GPUs", points=exact(busy), style=0),
            Series(name="memory in use on the least used GPU", points=exact(used), style=1, dash=1),
        ],
    )


def exact(points: Sequence[tuple[float, float]]) -> tuple[tuple[Decimal, Decimal], ...]:
    """The points as the decimals that line_chart draws."""
    return tuple((Decimal(str(x)), Decimal(str(y))) for x, y in points)


def smooth(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Exponential moving average, without the pull towards zero at the start."""
    total = weight = 0.0
    result: list[tuple[int, float]] = []
    for step, loss in points:
        total = _SMOOTHING * total + (1 - _SMOOTHING) * loss
        weight = _SMOOTHING * weight + (1 - _SMOOTHING)
        result.append((step, total / weight))
    return result


def bar_width(value: float, largest: float) -> float:
    """Width of a bar in percent of its cell; a value that is there is always seen."""
    if largest <= 0 or value <= 0:
        return 0.0
    return max(1.0, round(100 * value / largest, 1))


SIGNIFICANT_P = 0.05
"""A difference with a smaller p is told apart from chance; one metric should be named before."""
_LOWER_IS_BETTER = frozenset(
    {"perplexity", "loss", "repeated_4gram_share", "invented_share", "call_parse_failure"}
)
_HIGHER_IS_BETTER = ("accuracy", "tokens_per_s", "f1", "parsed", "bleu", "rouge", "exact_match")
_SHARES = ("invented_share", "term_recall")
_NAMES = {
    "perplexity": "Perplexity on held-out rows", "function_name_accuracy": "Function name accuracy",
    "argument_accuracy": "Argument accuracy", "argument_name_accuracy": "Argument name accuracy",
    "bleu": "BLEU (0 to 100)", "invented_share": "Numbers and names that the answer made up",
    "term_recall": "Domain terms used", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L", "message_length_avg": "Average answer length (characters)",
    "output_tokens_per_s": "Output tokens per second, one stream",
    "batch_output_tokens_per_s": "Output tokens per second, batch",
    "prefill_tokens_per_s": "Prompt tokens read per second, one stream",
    "batch_prefill_tokens_per_s": "Prompt tokens read per second, batch"
}  # fmt: skip


def evaluation_rows(evaluation: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """One row per number that both models have: before, after, change, and whether that is good."""
    if evaluation is None:
        return []
    base, tuned = evaluation["base_model"], evaluation["finetuned_model"]
    rows = []
    for key in base:
        before, after = base[key], tuned.get(key)
        if not (_is_number(before) and _is_number(after)) or key.startswith("num_"):
            continue
        is_share = "accuracy" in key or key in _SHARES
        share = is_share and max(abs(before), abs(after)) <= 1
        shown_before, shown_after = (100 * before, 100 * after) if share else (before, after)
        delta = shown_after - shown_before
        largest = max(abs(shown_before), abs(shown_after))
        test = _test(evaluation, key, 100 if share else 1)
        # One measurement of each says nothing of a difference.
        is_untested = "per_s" in key and test["p_value"] is None
        rows.append(
            {
                "key": key,
                "name": _NAMES.get(key, key.replace("_", " ").capitalize()),
                "unit": "%" if share else "",
                "before": shown_before,
                "after": shown_after,
                "change": "measured once"
                if is_untested
                else _change(before, after, delta, share=share),
                "better": None if is_untested else _better(key, delta),
                **test,
                "before_width": bar_width(shown_before, 100 if share else largest),
                "after_width": bar_width(shown_after, 100 if share else largest),
            }
        )
    return sorted(rows, key=lambda row: row["better"] is None)


def _test(evaluation: Mapping[str, Any], key: str, scale: float) -> dict[str, Any]:
    """The paired test of the metric in the row's own unit; None where there is none."""
    sampling, base = _part(evaluation, "sampling"), _part(evaluation, "base_model")
    resamples, confidence = sampling.get("resamples"), sampling.get("confidence")
    found = _part(_part(evaluation, "significance"), key)
    counts = (found.get("num_rows"), base.get("num_rows"))
    known = {
        "interval": f"{100 * confidence:g} % interval" if _is_number(confidence) else "interval",
        "resamples": resamples if _is_number(resamples) and resamples > 0 else None,
        "num_rows": next((each for each in counts if _is_number(each)), None),
    }
    low, high, p_value = (found.get(name) for name in ("low", "high", "p_value"))
    if not (_is_number(low) and _is_number(high) and _is_number(p_value)):
        return {**known, "low": None, "high": None, "p_value": None}
    return {**known, "low": scale * low, "high": scale * high, "p_value": p_value}


def bounds(row: Mapping[str, Any]) -> str | None:
    """The interval of the difference; None without one, or without a width: nothing varied."""
    low, high = row["low"], row["high"]
    return None if low == high else f"{signed(low, row['unit'])} to {signed(high, row['unit'])}"


def verdict(row: Mapping[str, Any]) -> str:
    """Better, worse, or not told apart; a figure without a test or a direction gets none."""
    if row["p_value"] is None:
        return "-"
    if row["p_value"] >= SIGNIFICANT_P or row["low"] <= 0 <= row["high"]:
        return "not told apart"
    return {True: "better", False: "worse", None: "differs"}[row["better"]]


def samples(evaluation: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """The same question to both models, with the reference answer."""
    if evaluation is None:
        return []
    before, after = (
        [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []
        for name in ("base_model", "finetuned_model")
        for given in [evaluation[name].get("sample_generations")]
    )
    return [
        {
            "input": str(base.get("input", "")),
            "reference": str(base.get("reference", "")),
            "base": str(base.get("generated", "")),
            "tuned": str(tuned.get("generated", "")),
        }
        for base, tuned in zip(before, after, strict=False)
    ]


def _change(before: float, after: float, delta: float, *, share: bool) -> str:
    if share:
        return f"{delta:+.1f} points"
    return f"{100 * (after - before) / before:+.1f} %" if before else "new" if after else "0"


def _better(key: str, delta: float) -> bool | None:
    """None where neither direction is better or nothing changed."""
    if not delta:
        return None
    if key in _LOWER_IS_BETTER:
        return delta < 0
    return delta > 0 if any(part in key for part in (*_HIGHER_IS_BETTER, *_SHARES)) else None


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of that name; empty where a damaged file, or an older one, has none."""
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is one that can be shown: NaN and what no metric reaches are none."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return -1e15 < value < 1e15
