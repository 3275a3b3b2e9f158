"""One submission at a time from this machine, and what a killed one left put where it belongs.

Owns the lock `<state>/runs/<stack>/.submit.lock` and the order in it: first every job whose number
never came back is found, written into the history and into the ledger; then another is looked for
and submitted. Two machines are kept apart by mark.py.
    with alone(state, connection, outputs, say): ...
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cost.ledger import FILE_NAME, Ledger, LedgerError
from infra.jobs import attempt, history
from infra.jobs.attempt import Attempt
from infra.jobs.budget import write_down
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell
from infra.jobs.submit import Submission

_LOCK: Final = ".submit.lock"


@contextmanager
def alone(
    state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]
) -> Generator[None]:
    """No other process of this state folder submits to the stack in the block."""
    descriptor = _open(state, outputs.stack)
    try:
        if not _taken(descriptor, state, outputs.stack, wait=False):
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            say(
                f"another submission to {outputs.stack} is on its way from here (process {other}); "
                "waiting for it"
            )
            _taken(descriptor, state, outputs.stack, wait=True)
        with contextlib.suppress(OSError):  # a full disk: only who waits would read it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        for path in history.damaged(state, outputs.stack):
            say(f"{path}: damaged, so its job may be submitted once more; remove it")
        _put_back(state, shell, outputs, say)
        yield
    finally:
        os.close(descriptor)


def put_back(state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]) -> None:
    """Puts back what a killed submission left, unless one is on its way or nothing can be told.

    For every command that enters the cluster; one that submits must know, and uses `alone`.
    """
    if not attempt.left(state, outputs.stack):
        return
    with contextlib.suppress(JobsError, LedgerError):
        descriptor = _open(state, outputs.stack)
        try:
            if _taken(descriptor, state, outputs.stack, wait=False):
                _put_back(state, shell, outputs, say)
        finally:
            os.close(descriptor)


def _put_back(state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]) -> None:
    ledger = Ledger(state / "runs" / outputs.stack / FILE_NAME)
    for begun in attempt.left(state, outputs.stack):
        # Ids start again on a cluster that was made anew, and its jobs are gone.
        if begun.submission.cluster == outputs.login_host_key:
            made = _made(state, shell, outputs, begun)
            if made is not None:
                with ledger.locked() as opened:
                    write_down(opened, begun.entries, made.job_id)
                say(
                    f"{made.job}: job {made.job_id} was submitted by a command that was cut off; "
                    "it is written down"
                )
        attempt.end(state, begun.submission)


def _made(state: Path, shell: Shell, outputs: StackOutputs, begun: Attempt) -> Submission | None:
    """What came of the attempt, in the history; None: nothing did."""
    here = [
        each
        for each in history.submissions(state, outputs.stack)
        if each.cluster == outputs.login_host_key
    ]
    for each in here:
        if each.mark == begun.mark:
            return each
    number = attempt.find(shell, outputs, begun, [each.job_id for each in here])
    if number is None:
        return None
    job = begun.submission.job
    made = replace(begun.submission, job_id=number, log_path=outputs.log_path(job, number))
    history.remember(state, made, is_new=False)
    return made


def _open(state: Path, stack: str) -> int:
    path = _lock_path(state, stack)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise JobsError(
            f"{path}: {error.strerror or error}; nothing was submitted: make its folder yours, or "
            "set SOPERATOR_STATE"
        ) from error


def _taken(descriptor: int, state: Path, stack: str, *, wait: bool) -> bool:
    """Whether the lock is ours; False only without `wait`, where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise JobsError(
            f"{_lock_path(state, stack)}: {error.strerror or error}; nothing was submitted: set "
            "SOPERATOR_STATE to a folder on a filesystem that has locks"
        ) from error
    return True


def _lock_path(state: Path, stack: str) -> Path:
    return state / "runs" / stack / _LOCK
