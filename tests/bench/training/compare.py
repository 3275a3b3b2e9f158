"""Compares two trainers at a time, prints each ratio with its spread, and writes the figures.

A ratio is the median over all rounds of one trainer's useful tokens (that are not padding) per CPU
second over the other's. Two at a time, because each holds a model of its own in memory.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.bench.machine import describe
from tests.bench.training import contest, work
from tests.bench.training.contest import Step, Trainer
from tests.bench.training.work import Work

LOSS_TOLERANCE = 1e-3
"""Relative; the same sums are taken in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two trainers, and what the first must reach of the second."""

    ours: str
    theirs: str
    least: float | None = None
    """None: told, not judged."""
    same_rows: bool = True
    """Both see the same rows in every step, so both must come to the same mean loss."""


def measure(
    pairs: Mapping[str, Pair],
    trainers: Mapping[str, Trainer],
    *,
    size: Work,
    path: Path | None,
    command: str,
    packages: Sequence[str],
    in_one_process: bool = False,
) -> int:
    """Measure all pairs and write `path`; return 0 when every ratio keeps its bound, else 1.

    `in_one_process`: the two of a pair as threads, which saves the starts of interpreters.
    """
    versions = {name: _version(name) for name in packages}
    is_kept = True
    for name, pair in pairs.items():
        machine = describe()
        ratio = _compare(pair, trainers, size, in_one_process=in_one_process)
        print(_line(name, ratio), flush=True)
        is_kept &= ratio["verdict"] != "FAIL"
        if path:
            found = ratio | {
                "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": command,
                "load_after": describe()["load_before"],
                "machine": machine,
                "versions": versions,
            }
            _put(path, name, found)
    return 0 if is_kept else 1


def _version(package: str) -> str | None:
    """Return its version; None where it is not installed, as TRL is for its own ratio alone."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _put(path: Path, name: str, found: dict[str, Any]) -> None:
    """Write one ratio beside those that are there: each has its own date, command and load."""
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    work_done = {
        "model": work.MODEL,
        "limit_tokens": work.LIMIT_TOKENS,
        "rows_a_step": work.ROWS_A_STEP,
    }
    ratios = result.get("ratios", {}) if result.get("work") == work_done else {}
    result = {"work": work_done, "ratios": ratios | {name: found}}
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _compare(
    pair: Pair, trainers: Mapping[str, Trainer], size: Work, *, in_one_process: bool
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as logs:
        rounds, losses = contest.hold(
            {name: trainers[name] for name in (pair.ours, pair.theirs)},
            num_steps=size.num_steps,
            logs=Path(logs),
            in_one_process=in_one_process,
        )
    return _judged(pair, rounds, losses)


def _judged(
    pair: Pair, rounds: Sequence[dict[str, Step]], losses: Mapping[str, float]
) -> dict[str, Any]:
    names = (pair.ours, pair.theirs)
    losses = {name: losses[name] for name in names}
    if pair.same_rows:
        mine, their = (losses[name] for name in names)
        if abs(mine - their) > LOSS_TOLERANCE * abs(their):
            sys.exit(f"bench: not the same work was done, by the mean losses: {losses}")
    rates = {name: contest.rates(rounds, name) for name in names}
    found = [mine / their for mine, their in zip(*rates.values(), strict=True)]
    low, middle, high = statistics.quantiles(found, n=4, method="inclusive")
    verdict = "PASS" if pair.least is None or middle >= pair.least else "FAIL"
    return {
        "ratio": round(middle, 3),
        "quartiles": [round(low, 3), round(high, 3)],
        "least": pair.least,
        "verdict": "no bound" if pair.least is None else verdict,
        "useful_tokens_per_cpu_s": {k: round(statistics.median(v), 2) for k, v in rates.items()},
        "mean_losses": {name: round(loss, 6) for name, loss in losses.items()},
        "rounds": [
            {name: [each[name].num_tokens, round(each[name].cpu_s, 3)] for name in names}
            for each in rounds
        ],
    }


def _line(name: str, found: dict[str, Any]) -> str:
    low, high = found["quartiles"]
    bound = "" if found["least"] is None else f"least {found['least']:g}  "
    return f"{name:<34}{found['ratio']:>7.3f}  ({low:.3f} to {high:.3f})  {bound}{found['verdict']}"
