"""Run records that were pulled here: `<state>/runs/<stack>/<job id>/run_record.json`.

Owns where they are. The format is cost/run_record.py's, its meaning for money cost/speeds.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cost.run_record import RunRecord, RunRecordError, load_run_records


def load_records(state: Path, stack: str, say: Callable[[str], object]) -> tuple[RunRecord, ...]:
    """Readable records of the stack; damaged files measured nothing, and `say` gets one line."""
    records, problems = load_run_records(state / "runs" / stack)
    if problems:
        first, *others = problems
        more = f" (and {len(others)} more)" if others else ""
        say(f"damaged run record, left out: {first}{more}; pull the job again or remove the file")
    return records


def load_whole_records(state: Path, stack: str) -> tuple[RunRecord, ...]:
    """Every record of the stack; RunRecordError names each damaged file in a line of its own."""
    records, problems = load_run_records(state / "runs" / stack)
    if problems:
        raise RunRecordError("\n".join(problems))
    return records
