"""Run records that were pulled here: `<state>/runs/<stack>/<job id>/run_record.json`.

Owns where they are. The format is cost/run_record.py's, its meaning for money cost/speeds.py's.
"""

from __future__ import annotations

from pathlib import Path

from cost.run_record import RunRecord, RunRecordError, load_run_records


def load_records(state: Path, stack: str) -> tuple[RunRecord, ...]:
    """Readable records of the stack; a damaged file counts as no measurement."""
    return load_run_records(state / "runs" / stack)[0]


def load_whole_records(state: Path, stack: str) -> tuple[RunRecord, ...]:
    """Every record of the stack; RunRecordError names each damaged file in a line of its own."""
    records, problems = load_run_records(state / "runs" / stack)
    if problems:
        raise RunRecordError("\n".join(problems))
    return records
