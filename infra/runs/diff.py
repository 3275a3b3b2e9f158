"""What is different between two runs: diff(a, b) -> RunDiff; settings, code, data, results, cost.

Owns which values are compared and the unit that each is told in. Reads no file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.runs.losses import TOLERANCE, Agreement, agreement
from infra.runs.run import Run, cost_text

HEADERS: Final = ("WHAT", "NAME", "UNIT", "FIRST", "SECOND", "CHANGE")
_ABSENT: Final = object()
# Endings of metrics' names; the longest that fits counts.
_UNITS: Final = {
    "_tokens_per_s_per_gpu": "tokens/s a GPU",
    "_tokens_per_s": "tokens/s",
    "_requests_per_s": "requests/s",
    "_gb_per_s": "GB/s",
    "_mib_per_s": "MiB/s",
    "_percent": "%",
    "_bytes": "bytes",
    "_gib": "GiB",
    "_ms": "ms",
    "_s": "s",
    "_usd": "USD",
    "_loss": "nats",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that the runs do not share, or a result of both."""

    what: str
    """run, code, data, setting, environment, result or cost."""
    name: str
    unit: str
    first: object
    """None where the run has none."""
    second: object
    change_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """Two runs side by side."""

    first: str
    second: str
    differences: tuple[Difference, ...]
    losses: Agreement
    notes: tuple[str, ...]


def diff(first: Run, second: Run, *, tolerance: float = TOLERANCE) -> RunDiff:
    """What the second run has otherwise; results stand there also where they are equal."""
    return RunDiff(
        first=first.name,
        second=second.name,
        differences=(
            *_unequal("run", _identity(first), _identity(second)),
            *_unequal("code", _code(first), _code(second)),
            *_unequal("data", _data(first), _data(second)),
            *_unequal("setting", first.settings, second.settings),
            *_unequal("environment", first.environment, second.environment),
            *_results(first, second),
            *_cost(first, second),
        ),
        losses=agreement(first.losses, second.losses, tolerance),
        notes=tuple(_notes(first, second)),
    )


def rows(found: RunDiff) -> list[tuple[object, ...]]:
    """A line for each difference, under HEADERS."""
    return [
        (
            each.what,
            each.name,
            each.unit,
            _text(each.first),
            _text(each.second),
            None if each.change_percent is None else f"{each.change_percent:+.1f} %",
        )
        for each in found.differences
    ]


def plain(found: RunDiff) -> dict[str, object]:
    """The comparison as plain values."""
    return {
        "first": found.first,
        "second": found.second,
        "differences": [
            {
                "what": each.what,
                "name": each.name,
                "unit": each.unit,
                "first": each.first,
                "second": each.second,
                "change_percent": each.change_percent,
            }
            for each in found.differences
        ],
        "losses": {
            "verdict": found.losses.verdict.value,
            "detail": found.losses.detail,
            "num_steps": found.losses.num_steps,
            "largest_share": _finite(found.losses.largest_share),
        },
        "notes": list(found.notes),
    }


def unit(metric: str) -> str:
    """The unit that a metric's name ends in; empty for a share or a score."""
    if metric.startswith("num_"):
        return "count"
    endings = [ending for ending in _UNITS if metric.endswith(ending)]
    return _UNITS[max(endings, key=len)] if endings else ""


def _identity(run: Run) -> Mapping[str, object]:
    record, hardware = run.record, run.record.hardware
    return {
        "job": record.job,
        "kind": record.kind,
        "recipe": record.recipe,
        "model": record.model,
        "engine": record.engine,
        "outcome": record.outcome.value,
        "reason": run.reason,
        "ranks": run.world_size,
        "nodes": hardware and hardware.num_nodes,
        "preset": hardware and hardware.preset,
        "device": hardware and hardware.device,
    }


def _code(run: Run) -> Mapping[str, object]:
    versions = {f"version of {name}": value for name, value in run.versions.items()}
    return {"code": run.code_hash, "revision": run.git_revision, **versions}


def _data(run: Run) -> Mapping[str, object]:
    return {"hash": run.data_hash, "file": run.data_file}


def _unequal(
    what: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in [*first, *(name for name in second if name not in first)]:
        before, after = first.get(name, _ABSENT), second.get(name, _ABSENT)
        if before != after:
            yield Difference(
                what=what,
                name=name,
                unit="",
                first=None if before is _ABSENT else before,
                second=None if after is _ABSENT else after,
            )


def _results(first: Run, second: Run) -> Iterator[Difference]:
    before, after = first.record.metrics, second.record.metrics
    names = [*before, *(name for name in after if name not in before)]
    seconds = (float(first.record.duration_s), float(second.record.duration_s))
    yield _result("duration", "s", *seconds)
    for name in names:
        yield _result(
            name,
            unit(name),
            float(before[name]) if name in before else None,
            float(after[name]) if name in after else None,
        )


def _result(name: str, unit: str, before: float | None, after: float | None) -> Difference:
    change = 100 * (after - before) / abs(before) if before and after is not None else None
    return Difference(
        what="result", name=name, unit=unit, first=before, second=after, change_percent=change
    )


def _cost(first: Run, second: Run) -> Iterator[Difference]:
    if first.usd is None and second.usd is None:
        return
    change = None
    if first.usd and second.usd is not None:
        change = float(100 * (second.usd - first.usd) / first.usd)
    yield Difference(
        what="cost",
        name="own nodes",
        unit="USD",
        first=cost_text(first),
        second=cost_text(second),
        change_percent=change,
    )


def _notes(first: Run, second: Run) -> Iterator[str]:
    for run in (first, second):
        if run.recipe is None:
            yield f"run {run.name} kept no recipe.json: its settings are not compared"
        if run.data_hash is None and run.record.kind in ("train", "prepare-data"):
            yield f"run {run.name} has no data hash: its data is not compared"
        if run.usd is None:
            yield f"run {run.name}: its cost is not known: soperator spend asks accounting"
    if first.usd_from != second.usd_from and None not in (first.usd_from, second.usd_from):
        yield (
            f"cost of {first.name} is by {first.usd_from}, of {second.name} by {second.usd_from}"
        )


def _finite(value: float | None) -> float | None:
    """The number; None for one that JSON does not know."""
    return None if value is None or not math.isfinite(value) else value


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value
    return f"{value:,.6g}" if isinstance(value, float) else json.dumps(value, default=str)
