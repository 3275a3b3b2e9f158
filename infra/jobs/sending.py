"""One sbatch whose job is never lost: written down before it, looked for where no number came back.

Owns that order, the same for a job and for an array: attempt, sbatch, history, ledger. Callers hold
the lock of recovery.py. What is submitted is dispatch.py's and search.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from infra.jobs import attempt, budget, history
from infra.jobs.attempt import Attempt
from infra.jobs.books import Books
from infra.jobs.budget import Asking
from infra.jobs.errors import JobsError, NotSubmittedError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell
from infra.jobs.submit import AlreadyQueuedError, Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One job that was asked for."""

    submission: Submission
    is_earlier: bool
    """Whether it had been submitted before."""


def plan_submission(
    outputs: StackOutputs,
    job: str,
    code_hash: str,
    sets: Sequence[str],
    after: str | None,
    mark: str,
    *,
    reproduces: str | None = None,
) -> Submission:
    """The submission as it is before it has a number."""
    return Submission(
        stack=outputs.stack,
        job=job,
        job_id="",
        code_hash=code_hash,
        sets=tuple(sets),
        after=after,
        log_path="",
        submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=outputs.login_host_key,
        reproduces=reproduces,
        mark=mark,
    )


def send(
    books: Books,
    shell: Shell,
    outputs: StackOutputs,
    asked: Asking,
    planned: Submission,
    submit: Callable[[], Submission],
    *,
    state: Path,
    say: Callable[[str], None],
    queued: Callable[[str], None] = lambda _: None,
) -> Sent:
    """What `submit` made of `planned`, in the history and in the ledger."""
    begun: list[Attempt] = []

    def begin(entries: budget.Entries) -> None:
        begun.append(Attempt(submission=planned, entries=entries))
        attempt.begin(state, begun[0])

    def numbered(job_id: str, mark: str | None = planned.mark) -> Submission:
        log_path = outputs.log_path(planned.job, job_id)
        return replace(planned, job_id=job_id, log_path=log_path, mark=mark)

    def submit_and_remember() -> Submission:
        try:
            number = submit().job_id
        except AlreadyQueuedError as same:
            say(f"{same}; it is taken")
            found = numbered(same.job_id, same.mark)
            history.remember(state, found, is_new=False)
            return found
        except NotSubmittedError:
            attempt.end(state, planned)
            raise
        except JobsError as error:
            number = _came_of(shell, outputs, begun[0], error, state)
            say(f"{planned.job}: job {number} came of it all the same ({error})")
        queued(number)
        made = numbered(number)
        history.remember(state, made)
        return made

    made = budget.submit_within_budget(
        books, shell, asked, submit_and_remember, say=say, begin=begin
    )
    attempt.end(state, planned)
    return Sent(submission=made, is_earlier=made.mark != planned.mark)


def _came_of(
    shell: Shell, outputs: StackOutputs, begun: Attempt, error: JobsError, state: Path
) -> str:
    """Number of the job that an sbatch without an answer made; raises `error` where it made none.

    Slurm may queue a job and let sbatch time out. Where nobody answers, the attempt stays.
    """
    known = [
        each.job_id
        for each in history.submissions(state, outputs.stack)
        if each.cluster == outputs.login_host_key
    ]
    try:
        number = attempt.find(shell, outputs, begun, known)
    except JobsError:
        raise error from None
    if number is None:
        attempt.end(state, begun.submission)
        raise error
    return number
