"""What is different between two runs: settings, code, data, results, losses, cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from cost.report.layout import picked
from infra.reports.runs.run import Run, cost_text

TOLERANCE: Final = 0.01
"""Ours: one part in a hundred, below what another seed changes."""


HEADERS: Final = ("WHAT", "NAME", "UNIT", "FIRST", "SECOND", "CHANGE")
_IDENTITY: Final = """
record.job record.kind record.recipe record.model record.engine record.outcome record.reason
ranks=record.world_size nodes=record.hardware.num_nodes record.hardware.preset
record.hardware.device
"""
# Endings of metrics' names; the longest that fits counts.
_UNITS: Final = {
    "_tokens_per_s_per_gpu": "tokens/s a GPU", "_tokens_per_s": "tokens/s",
    "_requests_per_s": "requests/s", "_gb_per_s": "GB/s", "_mib_per_s": "MiB/s", "_percent": "%",
    "_bytes": "bytes", "_gib": "GiB", "_ms": "ms", "_s": "s", "_usd": "USD", "_loss": "nats"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that the runs do not share, or a result of both, in the order of HEADERS."""

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
            *_unequal("run", picked(first, _IDENTITY), picked(second, _IDENTITY)),
            *_unequal("code", _code(first), _code(second)),
            *_unequal("data", _data(first), _data(second)),
            *_unequal("setting", first.settings, second.settings),
            *_unequal("environment", first.record.environment, second.record.environment),
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
    share = found.losses.largest_share
    # JSON knows no infinity.
    told = share if share is not None and math.isfinite(share) else None
    return {**asdict(found), "losses": {**asdict(found.losses), "largest_share": told}}


def unit(metric: str) -> str:
    """The unit that a metric's name ends in; empty for a share or a score."""
    if metric.startswith("num_"):
        return "count"
    endings = [ending for ending in _UNITS if metric.endswith(ending)]
    return _UNITS[max(endings, key=len)] if endings else ""


def _code(run: Run) -> Mapping[str, object]:
    versions = {f"version of {name}": value for name, value in run.record.versions.items()}
    return {"code": run.record.code_hash, "revision": run.record.git_revision, **versions}


def _data(run: Run) -> Mapping[str, object]:
    return {"hash": run.record.data_hash, "file": run.record.artifacts.get("data_file")}


def _unequal(
    what: str, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Iterator[Difference]:
    for name in [*first, *(name for name in second if name not in first)]:
        if name not in first or name not in second or first[name] != second[name]:
            yield Difference(what, name, "", first.get(name), second.get(name))


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
    return Difference("result", name, unit, before, after, change)


def _cost(first: Run, second: Run) -> Iterator[Difference]:
    if first.usd is None and second.usd is None:
        return
    change = None
    if first.usd and second.usd is not None:
        change = float(100 * (second.usd - first.usd) / first.usd)
    yield Difference("cost", "own nodes", "USD", cost_text(first), cost_text(second), change)


def _notes(first: Run, second: Run) -> Iterator[str]:
    for run in (first, second):
        if run.recipe is None:
            yield f"run {run.name} kept no recipe.json: its settings are not compared"
        if run.record.data_hash is None and run.record.kind in ("train", "prepare-data"):
            yield f"run {run.name} has no data hash: its data is not compared"
        if run.usd is None:
            ask = f"soperator cost spend -s {run.stack}"
            yield f"run {run.name}: its cost is not known: {ask} asks accounting"
    if first.usd_from != second.usd_from and None not in (first.usd_from, second.usd_from):
        yield (
            f"cost of {first.name} is by {first.usd_from}, of {second.name} by {second.usd_from}"
        )


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value
    return f"{value:,.6g}" if isinstance(value, float) else json.dumps(value, default=str)


Curve = Sequence[tuple[int, float]]


class Verdict(StrEnum):
    """What became of the comparison."""

    EQUAL = "EQUAL"
    AGREE = "AGREE"
    DIFFER = "DIFFER"
    NOT_RUN = "NOT RUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Two loss curves held against each other."""

    verdict: Verdict
    detail: str
    num_steps: int
    largest_share: float | None
    """The largest difference at a step, as a part of the first run's loss there.

    None where no step is in common, infinite where one loss is no number and the other is.
    """

    def __str__(self) -> str:
        return f"{self.verdict}: {self.detail}"


def agreement(first: Curve, second: Curve, tolerance: float = TOLERANCE) -> Agreement:
    """The second curve held against the first."""
    before, after = dict(first), dict(second)
    steps = sorted(before.keys() & after.keys())
    if not steps:
        which = "the first" if not before else "the second" if not after else "neither, in common,"
        return Agreement(
            verdict=Verdict.NOT_RUN,
            detail=f"{which} has no loss of a train step",
            num_steps=0,
            largest_share=None,
        )
    shares = {step: _share(before[step], after[step]) for step in steps}
    largest = max(shares.values())
    only = len(before.keys() ^ after.keys())
    said = f"{len(steps)} train steps" + (f" in common, {only} in one run only" if only else "")
    if not any(shares.values()):
        verdict, detail = Verdict.EQUAL, f"losses of {said} are equal to the last bit"
    elif largest <= tolerance:
        verdict = Verdict.AGREE
        detail = f"losses of {said} are at most {100 * largest:.3g} % apart"
    else:
        verdict = Verdict.DIFFER
        step = next(step for step in steps if shares[step] > tolerance)
        detail = (
            f"losses of {said}: at step {step} {before[step]:.6g} and {after[step]:.6g}, more than "
            f"{100 * tolerance:g} % apart"
            + (f"; at most {100 * largest:.3g} %" if math.isfinite(largest) else "")
        )
    return Agreement(verdict=verdict, detail=detail, num_steps=len(steps), largest_share=largest)


def _share(before: float, after: float) -> float:
    if before == after or (math.isnan(before) and math.isnan(after)):
        return 0.0
    if not before or not (math.isfinite(before) and math.isfinite(after)):
        return math.inf
    # The smallest number that is not 0, where the division would give 0: they are not equal.
    return abs(after - before) / abs(before) or math.ulp(0.0)
