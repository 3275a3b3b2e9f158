"""What a cluster did last: activity(shell, ...), from Slurm's queue and accounting.

Owns what counts as work: jobs of people and of this program, not those of Soperator's checks.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cost.spend import JobUse
from infra.jobs import accounting
from infra.jobs.errors import JobsError
from infra.jobs.slurm import Shell, refused

_CHECKS_USER: Final = "soperatorchecks"
_CHECKS_PARTITION: Final = "hidden"
_ANY_H: Final = 24
"""How far back the reason looks where no idle limit is declared."""
_BOOT: Final = re.compile(r"^BOOT_TIME\s*=\s*(\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """Jobs that are not over, and since when there is none; times in UTC."""

    unfinished: tuple[str, ...]
    """Jobs that run or wait, as `12 finetune`."""
    job_ids: tuple[str, ...] = ()
    """Those of them that Slurm has."""
    idle_since: datetime
    """End of the last job, or the start of the controller where that is later or knows of none."""


def activity(
    shell: Shell,
    cluster: str,
    *,
    now: datetime,
    hours: int | None,
    placeholders: Collection[str] = (),
) -> Activity:
    """What the cluster did in the last `hours`, and does now; None: only now matters.

    `placeholders`: names of recurring jobs that wait for their next time, which is no work.
    """
    since = now - timedelta(hours=hours or _ANY_H)
    known = accounting.uses(shell, cluster, since=since, until=now)
    if hours is not None and not known.has_accounting:
        raise JobsError(
            "accounting is off on the cluster, so nobody knows when the last job ended and nothing "
            "is paused; bring it back (slurm.accounting), or pause by hand: soperator pause"
        )
    # The queue alone says what is not over: accounting lacks held jobs and keeps lost ones.
    unfinished = [
        use
        for use in known.queued
        # Of the checks' partition only their own: who else is there has a node at work.
        if use.user != _CHECKS_USER and not (use.name in placeholders and use.state == "PENDING")
    ]
    work = filter(_is_work, known.uses)
    ends = [run.ended_at for use in work for run in use.runs if run.ended_at is not None]
    return Activity(
        unfinished=tuple(f"{use.job_id} {use.name}" for use in unfinished),
        job_ids=tuple(use.job_id for use in unfinished),
        idle_since=max([_started_at(shell), *ends]),
    )


def _is_work(use: JobUse) -> bool:
    return use.user != _CHECKS_USER and use.partition != _CHECKS_PARTITION


def _started_at(shell: Shell) -> datetime:
    """When the controller started: before that nothing is known of a new or resumed cluster."""
    result = shell.run("export TZ=UTC0; scontrol show config")
    if not result.ok:
        raise refused("scontrol show config", result)
    found = _BOOT.search(result.stdout)
    if found is None:
        raise JobsError("scontrol show config: no BOOT_TIME; look with `soperator ssh`")
    return datetime.fromisoformat(found[1]).replace(tzinfo=UTC)
