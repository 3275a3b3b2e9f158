"""A submission that is about to be made, written down before sbatch: its job is never lost.

Owns `<state>/runs/<stack>/.attempts/<nonce>.json`, removed once the job is in the history and in
the ledger, and how the job of one that was left is found on the cluster. recovery.py puts it back.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cost.ledger_entries import Entry, LineError, VersionError, decode, encode
from infra import whole_file
from infra.jobs import mark as marks
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell, refused
from infra.jobs.submit import Submission

_FOLDER: Final = ".attempts"
_QUEUE: Final = "%F|%k"
_SACCT: Final = "JobID,Submit,Comment"
_BEFORE: Final = timedelta(minutes=5)
_AFTER: Final = timedelta(minutes=10)
"""How far this machine's clock and the wait for sbatch may take the two moments apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A submission without its number, and what the ledger gets once it has one."""

    submission: Submission
    entries: tuple[Entry, ...]

    @property
    def mark(self) -> str:
        """The comment of its job."""
        assert self.submission.mark is not None
        return self.submission.mark


def begin(state: Path, attempt: Attempt) -> None:
    """Writes the attempt down, whole; sbatch comes after it."""
    path = _path(state, attempt.submission)
    values = {
        "submission": asdict(attempt.submission),
        "entries": [encode(entry) for entry in attempt.entries],
    }
    try:
        whole_file.write(path, json.dumps(values))
    except OSError as error:
        raise JobsError(
            f"{path}: {error.strerror or error}; nothing was submitted: make room there, or set "
            "SOPERATOR_STATE"
        ) from error


def end(state: Path, submission: Submission) -> None:
    """Forgets the attempt: its job is written down, or there is none."""
    _path(state, submission).unlink(missing_ok=True)


def left(state: Path, stack: str) -> tuple[Attempt, ...]:
    """Attempts that nobody ended, oldest first; a damaged file never came as far as sbatch."""
    found = [_read(path) for path in (state / "runs" / stack / _FOLDER).glob("*.json")]
    known = [each for each in found if each is not None]
    return tuple(sorted(known, key=lambda each: each.submission.submitted_at))


def find(
    shell: Shell, outputs: StackOutputs, attempt: Attempt, known: Collection[str]
) -> str | None:
    """Id of the job that came of the attempt; None: none did. `known`: ids of other submissions.

    By its comment while the controller has the job or accounting keeps comments; else by name and
    time, where one job alone fits.
    """
    made = attempt.submission
    begun = datetime.fromisoformat(made.submitted_at)
    since = (begun - timedelta(days=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    # An sbatch whose sender is gone still holds the lock: what it makes is seen after it.
    result = shell.run(
        f"{marks.lock_script(outputs.code_path)}export TZ=UTC0; "
        f"squeue --all --noheader --states=all --format={shlex.quote(_QUEUE)} && echo -- && "
        f"sacct --allusers --noheader --parsable2 --allocations --name={shlex.quote(made.job)} "
        f"--format={_SACCT} --starttime={since}"
    )
    if result.exit_code == marks.BUSY_EXIT:
        raise JobsError(
            f"{made.job}: {marks.why_busy(result.stderr)}; whether a job came of the submission "
            "that was cut off is not known: try again"
        )
    # A whole line: a comment of somebody's job may end with the same.
    queued, separator, accounted = f"\n{result.stdout}".partition("\n--\n")
    if not separator or (not result.ok and "accounting storage" not in result.stderr):
        raise refused("squeue", result)
    in_queue = [line.partition("|") for line in queued.split("\n") if line]
    rows = [fields for line in accounted.splitlines() if len(fields := line.split("|", 2)) == 3]
    for job_id, comment in [(each[0], each[2]) for each in in_queue] + [
        (row[0], row[2]) for row in rows
    ]:
        if comment.strip() == attempt.mark:
            return _number(job_id)
    # The controller knows the comments of its jobs, so none of those is it.
    others = {_number(each[0]) for each in in_queue} | set(known)
    return _by_time(rows, begun, others)


def _by_time(rows: Sequence[Sequence[str]], begun: datetime, others: Collection[str]) -> str | None:
    fits = {
        number
        for job_id, submitted, comment in rows
        if not comment.strip()
        and (number := _number(job_id)) not in others
        and (at := _time(submitted)) is not None
        and begun - _BEFORE <= at <= begun + _AFTER
    }
    return fits.pop() if len(fits) == 1 else None


def _number(job_id: str) -> str:
    """`12` of `12`, `12_3` and `12_[1-3]`: what sbatch said."""
    return re.sub(r"\D.*", "", job_id.strip())


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        return None


def _read(path: Path) -> Attempt | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        submission = values["submission"]
        found = Attempt(
            submission=Submission(**{**submission, "sets": tuple(submission["sets"])}),
            entries=tuple(decode(line) for line in values["entries"]),
        )
        datetime.fromisoformat(found.submission.submitted_at)
    except (OSError, ValueError, TypeError, KeyError, LineError, VersionError, RecursionError):
        return None
    return found if isinstance(found.submission.mark, str) else None


def _path(state: Path, submission: Submission) -> Path:
    nonce = (submission.mark or "").rpartition(":")[2]
    return state / "runs" / submission.stack / _FOLDER / f"{nonce}.json"
