"""Ends the jobs of a stack whose end has passed, with a last checkpoint: end_jobs(shell, ...).

Owns the order: no requeue, the signal upon which ours save, the time to save, scancel. Other jobs
die of that signal or of scancel.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import Final

from infra.jobs import slurm
from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell

POLL_S: Final = 5.0
_KILL_S: Final = 300.0
"""Until scancel's SIGKILL is through: Soperator's KillWait is 180 s, an epilog follows."""


def end_jobs(
    shell: Shell,
    left: Callable[[], Sequence[str]],
    *,
    save_s: float,
    say: Callable[[str], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when no job is `left`; running ones had `save_s`. An error where some stay."""
    ids = left()
    if not ids:
        return
    say(f"ends jobs {', '.join(ids)}; they have {save_s:.0f} s to save")
    for each in ids:
        # What saved would queue itself again, in a partition that lets queued jobs start. Whatever
        # the answer is: a job may have ended meanwhile, and only running ones take a signal.
        job = slurm.job_id(each)
        shell.run(shlex.join(["scontrol", "update", f"JobId={job}", "Requeue=0"]))
        shell.run(shlex.join(["scancel", "--state=RUNNING", "--batch", "--signal=USR1", job]))
    if ids := _wait(left, save_s, pause):
        slurm.cancel(shell, ids)
        ids = _wait(left, _KILL_S, pause)
    if ids:
        raise JobsError(
            f"jobs {', '.join(ids)} do not end, so nothing was paused; look with `soperator "
            "status`, end them, then run this again"
        )


def _wait(
    left: Callable[[], Sequence[str]], limit_s: float, pause: Callable[[float], None]
) -> Sequence[str]:
    """What is left when none is, or after the limit."""
    for _ in range(int(limit_s // POLL_S) + 1):
        if not (ids := left()):
            return ids
        pause(POLL_S)
    return left()
