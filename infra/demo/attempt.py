"""The submission that a run is about to make: a job is found again though its id was never seen.

Owns `<state>/demo/attempt.json`, written before sbatch and removed once the job's id is written
down. A run that is killed in between leaves it; the next one finds the job by what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.jobs.parse import Job
from infra.jobs.submit import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A submission without its number, and the newest job of the cluster before it."""

    submission: Submission
    newest_id: int


def begin(state: Path, attempt: Attempt) -> None:
    """Writes the attempt down, whole."""
    path = _path(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(attempt)), encoding="utf-8")
    part.replace(path)


def end(state: Path) -> None:
    """Forgets the attempt: its job is known, or there is none."""
    _path(state).unlink(missing_ok=True)


def left(state: Path) -> Attempt | None:
    """The attempt of a run that was killed; a damaged file is as good as none."""
    try:
        values = json.loads(_path(state).read_text(encoding="utf-8"))
        submission = values["submission"]
        return Attempt(
            submission=Submission(**{**submission, "sets": tuple(submission["sets"])}),
            newest_id=int(values["newest_id"]),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def newest(jobs: Iterable[Job]) -> int:
    """The largest job id; 0 without jobs."""
    return max((_number(job) for job in jobs), default=0)


def made(attempt: Attempt, jobs: Iterable[Job], known: Iterable[str]) -> Job | None:
    """The job that the attempt made, if sbatch came so far: newer, of that name, not in `known`."""
    recorded = set(known)
    for job in jobs:
        is_new = _number(job) > attempt.newest_id and job.id not in recorded
        if is_new and job.name == attempt.submission.job:
            return job
    return None


def _number(job: Job) -> int:
    return int(job.id.split("_")[0])


def _path(state: Path) -> Path:
    return state / "demo" / "attempt.json"
