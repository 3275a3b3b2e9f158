"""What a cluster did last: activity(shell, ...), from Slurm's own accounting.

Owns what counts as work: jobs of people and of this program, not those of Soperator's checks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from infra.jobs import accounting
from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell, refused

_CHECKS_USER: Final = "soperatorchecks"
_CHECKS_PARTITION: Final = "hidden"
_BOOT: Final = re.compile(r"^BOOT_TIME\s*=\s*(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Jobs that are not over, and since when there is none; times in UTC."""

    unfinished: tuple[str, ...]
    """Jobs that run or wait, as `12 finetune`."""
    idle_since: datetime
    """End of the last job, or the start of the controller where that is later or knows of none."""


def activity(shell: Shell, cluster: str, *, now: datetime, hours: int) -> Activity:
    """What the cluster did in the last `hours`, and does now."""
    since = now - timedelta(hours=hours)
    known = accounting.uses(shell, cluster, since=since, until=now)
    work = [
        use for use in known.uses if use.user != _CHECKS_USER and use.partition != _CHECKS_PARTITION
    ]
    ends = [run.ended_at for use in work for run in use.runs if run.ended_at is not None]
    return Activity(
        unfinished=tuple(f"{use.job_id} {use.name}" for use in work if not use.is_finished),
        idle_since=max([_started_at(shell), *ends]),
    )


def _started_at(shell: Shell) -> datetime:
    """When the controller started: before that nothing is known of a new or resumed cluster."""
    result = shell.run("export TZ=UTC0; scontrol show config")
    if not result.ok:
        raise refused("scontrol show config", result)
    found = _BOOT.search(result.stdout)
    if found is None:
        raise JobsError("scontrol show config: no BOOT_TIME; look with `soperator ssh`")
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
