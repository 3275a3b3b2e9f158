"""Run records that were pulled here: `<state>/runs/<stack>/<job id>/run_record.json`.

Owns where they are, and how the files beside them are read. The format is cost/run_record.py's, its
meaning for money cost/chat/speeds.py's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from cost.run_record import RunRecord, RunRecordError, load_run_records
from cost.runs.forecast import learned
from cost.runs.ledger import FILE_NAME, Ledger, LedgerError
from stacks.files import read_bytes
from stacks.spec import StackSpec

_MOST_BYTES: Final = 256 << 20
"""Samples of a long training on many GPUs."""

LOSS_CURVE = "loss_curve.jsonl"


def load_records(state: Path, stack: str, log: Callable[[str], object]) -> tuple[RunRecord, ...]:
    """Readable records of the stack; damaged files measured nothing, and `log` gets one line."""
    records, problems = load_run_records(state / "runs" / stack)
    if problems:
        first, *others = problems
        more = f" (and {len(others)} more)" if others else ""
        log(f"damaged run record, left out: {first}{more}; pull the job again or remove the file")
    return records


def load_whole_records(state: Path, stack: str) -> tuple[RunRecord, ...]:
    """Every record of the stack; RunRecordError names each damaged file in a line of its own."""
    records, problems = load_run_records(state / "runs" / stack)
    if problems:
        raise RunRecordError("\n".join(problems))
    return records


def with_history(spec: StackSpec, state: Path, log: Callable[[str], object]) -> StackSpec:
    """The stack with the preemption rate that its jobs met, as far as this machine settled them.

    Where the ledger cannot be read the rate is the declared one, and `log` gets a line.
    """
    try:
        return learned(spec, Ledger(state / "runs" / spec.name / FILE_NAME).read().entries)
    except LedgerError as error:
        log(f"{error}; the preemption rate that its jobs met is left out")
        return spec


def losses(folder: Path, name: str = "loss") -> tuple[tuple[int, float], ...]:
    """(step from 1, `name`) of a run's loss curve; a line cut by a kill is skipped."""
    points: list[tuple[int, float]] = []
    for line in read_text(folder / LOSS_CURVE).splitlines():
        try:
            value = json.loads(line)
            points.append((int(value["step"]) + 1, float(value[name])))
        # Infinite steps, numbers beyond a float, and nests as deep as no writer of ours makes.
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
    return tuple(points)


def read_object(path: Path) -> Mapping[str, Any]:
    """The JSON object in a file; empty where there is none."""
    return parse_object(read_text(path))


def parse_object(text: str) -> Mapping[str, Any]:
    """The JSON object of a text; empty where it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_text(path: Path) -> str:
    """The text of a file; empty where it cannot be read."""
    try:
        return read_bytes(path, at_most_bytes=_MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""
