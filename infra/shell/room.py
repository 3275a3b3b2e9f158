"""Whether a session could start now: Slurm is asked to plan it, and queues nothing.

Owns one command line and its parsing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell, refused
from infra.shell.ask import Ask

_TIME: Final = "%Y-%m-%dT%H:%M:%S"
_PLANNED: Final = re.compile(r"Job \d+ to start at (\S+)")
_NOW_WITHIN: Final = timedelta(seconds=30)
"""Slurm plans in whole scheduling rounds: this much later is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What Slurm would do with a session."""

    wait: timedelta
    """Until the start that it plans; nothing when it could start now."""
    starts_at: str
    """In the cluster's own time."""
    num_waiting: int
    """Jobs that wait in the partition."""

    @property
    def is_free(self) -> bool:
        """Whether it would start now."""
        return self.wait <= _NOW_WITHIN


def look(shell: Shell, asked: Ask) -> Room:
    """The plan for the session; refused where Slurm would never start it."""
    waiting = shlex.join(
        ["squeue", "--noheader", "--states=PENDING", f"--partition={asked.partition}",
         "--format=%i"]
    )  # fmt: skip
    result = shell.run(
        f"date +{_TIME}; {waiting} | wc -l; {asked.srun('true', options=['--test-only'])}"
    )
    lines = result.stdout.split()
    planned = _PLANNED.search(result.stderr)
    if not result.ok or planned is None or len(lines) < 2:
        raise refused(f"partition {asked.partition}: srun --test-only", result)
    return Room(
        wait=max(timedelta(0), _moment(planned[1]) - _moment(lines[0])),
        starts_at=planned[1],
        num_waiting=int(lines[1]),
    )


def refuse_full(asked: Ask, room: Room) -> None:
    """Refuses a session that would have to wait, with how long."""
    if room.is_free:
        return
    what = f"{asked.gpus} GPUs" if asked.gpus else f"{asked.cpus} CPUs"
    raise JobsError(
        f"no {what} are free in partition {asked.partition}: {room.num_waiting} jobs wait there, "
        f"and Slurm would start this at {room.starts_at} (in {room.wait}); ask for less, or wait "
        "for it with --wait"
    )


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME)  # noqa: DTZ007 (both are the cluster's own time)
    except ValueError as error:
        raise JobsError(f"Slurm printed the time {text!r}, which is not {_TIME}") from error
