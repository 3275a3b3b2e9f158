"""Run records that were pulled here: `<state>/runs/<stack>/<job id>/run_record.json`.

Owns where they are. The format is cost/run_record.py's, its meaning for money cost/unit_costs.py's.
"""

from __future__ import annotations

from pathlib import Path

from cost.run_record import RunRecord, load_run_records


def load_records(state: Path, stack: str) -> tuple[RunRecord, ...]:
    """Readable records of the stack; a damaged file counts as no measurement."""
    return load_run_records(state / "runs" / stack)[0]
