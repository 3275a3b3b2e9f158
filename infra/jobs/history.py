"""Submissions made from this checkout: `<state>/runs/<stack>/<job id>/submission.json`.

Owns that file and the folder of one run. A submission says what was asked, a run record what came.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from infra import whole_file
from infra.jobs.errors import JobsError
from infra.jobs.submit import Submission
from stacks import text_file

SUBMISSION = "submission.json"


def run_folder(state: Path, stack: str, job_id: str) -> Path:
    """Where everything about one job is kept on this machine."""
    return state / "runs" / stack / job_id


def remember(state: Path, submission: Submission, *, is_new: bool = True) -> None:
    """Writes the submission down whole; drops the run of a former cluster that had its id.

    `is_new`: False for a job that was found, of which results may have been pulled.
    """
    folder = run_folder(state, submission.stack, submission.job_id)
    former = read_submission(folder / SUBMISSION)
    if is_new or (former is not None and former.cluster != submission.cluster):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        whole_file.write(folder / SUBMISSION, json.dumps(asdict(submission), indent=2) + "\n")
    except OSError as error:
        raise JobsError(
            f"{folder}: {error.strerror or error}; job {submission.job_id} is submitted but not "
            "written down here: make room, and the next command writes it down"
        ) from error


def submissions(state: Path, stack: str) -> tuple[Submission, ...]:
    """Submissions to this stack, oldest first; a damaged file is as good as none."""
    found = [
        submission
        for path in (state / "runs" / stack).glob(f"*/{SUBMISSION}")
        if (submission := read_submission(path)) is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.submitted_at, int(each.job_id))))


def damaged(state: Path, stack: str) -> tuple[Path, ...]:
    """Files of submissions to this stack that say nothing any more."""
    found = sorted((state / "runs" / stack).glob(f"*/{SUBMISSION}"))
    return tuple(path for path in found if read_submission(path) is None)


def read_submission(path: Path) -> Submission | None:
    """The submission in the file; a damaged one is as good as none."""
    try:
        values = json.loads(text_file.read_text(path))
        found = Submission(**{**values, "sets": tuple(values["sets"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (found.stack, found.job, found.job_id, found.cluster, found.submitted_at)
    texts += (found.code_hash, found.log_path, *found.sets)
    others = (found.after, found.reproduces, found.mark)
    whole = all(isinstance(each, str) for each in texts) and found.job_id.isdecimal()
    return found if whole and all(isinstance(each, str | None) for each in others) else None
