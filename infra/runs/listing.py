"""Runs as rows: which of them were asked for, and what a line says of each.

Owns filters and columns of `soperator runs list`. Decides no layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from infra.runs.run import ACCOUNTING, Run, cost_text

HEADERS: Final = (
    *("RUN", "JOB", "OUTCOME", "MODEL", "METHOD", "TOKENS/S", "USD", "CODE", "REVISION"),
    *("STARTED (UTC)", "REPEATS"),
)
_SHORT: Final = 10
"""Digits of a commit that people tell apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which runs; None and nothing: any."""

    jobs: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    model: str | None = None
    """A part of its name, in any case."""
    since: datetime | None = None
    last: int | None = None
    """So many of the newest."""


def select(runs: Sequence[Run], wanted: Wanted) -> tuple[Run, ...]:
    """The runs that fit, oldest first."""
    found = tuple(run for run in runs if _fits(run, wanted))
    return found if wanted.last is None else found[-wanted.last :]


def rows(runs: Sequence[Run]) -> list[tuple[object, ...]]:
    """A line for each run, under HEADERS."""
    return [
        (
            run.name,
            run.record.job,
            run.record.outcome,
            run.record.model,
            run.method or run.record.kind,
            None if run.tokens_per_s is None else f"{run.tokens_per_s:,.1f}",
            cost_text(run),
            run.code_hash,
            None if run.git_revision is None else run.git_revision[:_SHORT],
            f"{run.record.started_at:%Y-%m-%d %H:%M}",
            run.reproduces,
        )
        for run in runs
    ]


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the marks in the rows mean."""
    if not any(run.usd is not None and run.usd_from != ACCOUNTING for run in runs):
        return ()
    note = (
        "~: an estimate, whole nodes for the time of its record; `soperator pull ID` and "
        "`soperator spend` ask Slurm's accounting, after which the figure is what it held"
    )
    return (note,)


def plain(run: Run) -> dict[str, object]:
    """The run as plain values, units in the names."""
    hardware = run.record.hardware
    return {
        "run": run.name,
        "job": run.record.job,
        "job_id": run.record.job_id,
        "kind": run.record.kind,
        "outcome": run.record.outcome.value,
        "reason": run.reason,
        "model": run.record.model,
        "recipe": run.record.recipe,
        "method": run.method,
        "tokens_per_s": None if run.tokens_per_s is None else float(run.tokens_per_s),
        "usd": None if run.usd is None else str(run.usd),
        "usd_from": run.usd_from,
        "code_hash": run.code_hash,
        "git_revision": run.git_revision,
        "data_hash": run.data_hash,
        "started_at": run.record.started_at.isoformat(),
        "duration_s": int(run.record.duration_s),
        "num_nodes": None if hardware is None else hardware.num_nodes,
        "preset": None if hardware is None else hardware.preset,
        "device": None if hardware is None else hardware.device,
        "world_size": run.world_size,
        "reproduces": run.reproduces,
        "metrics": {name: float(value) for name, value in run.record.metrics.items()},
        "settings": dict(run.settings),
    }


def _fits(run: Run, wanted: Wanted) -> bool:
    record = run.record
    model = (record.model or "").casefold()
    return (
        (not wanted.jobs or record.job in wanted.jobs)
        and (not wanted.kinds or record.kind in wanted.kinds)
        and (not wanted.outcomes or record.outcome in wanted.outcomes)
        and (wanted.model is None or wanted.model.casefold() in model)
        and (wanted.since is None or record.started_at >= wanted.since)
    )
