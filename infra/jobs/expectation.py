"""When a job is expected to start or end: the scheduler's plan, our forecast, the time limit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

from cost.ledger import FILE_NAME, Ledger
from cost.ledger_entries import ForecastEntry
from infra.jobs.parse import Job


def forecast_hours(state: Path, stack: str, cluster: str) -> Mapping[str, Decimal]:
    """Job id -> hours that were forecast when it was submitted from this machine."""
    entries = Ledger(state / "runs" / stack / FILE_NAME).read().entries
    return {
        entry.job_id: entry.hours
        for entry in entries
        if isinstance(entry, ForecastEntry) and entry.cluster == cluster and entry.hours is not None
    }


def expected(job: Job, hours: Decimal | None) -> str | None:
    """What comes next and when, in the cluster's own time; None where nothing is known."""
    if job.waits:
        return None if job.started is None else f"starts {job.started}"
    if job.state != "RUNNING":
        return None
    started = _time(job.started)
    if started is not None and hours is not None:
        end = started + timedelta(hours=float(hours))
        return f"ends {end.isoformat(timespec='seconds')} by forecast"
    return None if job.limit_at is None else f"ends {job.limit_at} at the latest"


def _time(text: str | None) -> datetime | None:
    """A time as Slurm prints it; None where a site's SLURM_TIME_FORMAT prints another."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
