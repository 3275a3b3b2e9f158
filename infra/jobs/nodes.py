"""Takes Slurm nodes out of use and back: drain(shell, ...), resume(shell, ...), await_idle(...).

A drained node takes no new job; those that run on it end by themselves. Owns the command lines.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from typing import Final

from infra.jobs.draining import jobs_on
from infra.jobs.errors import JobsError
from infra.jobs.parse import Job
from infra.jobs.slurm import Shell, refused

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_POLL_S: Final = 5.0
_REASON_MAX: Final = 200
_NOTHING_TO_RESUME: Final = "Invalid node state specified"
"""slurmctld's answer to a resume of a node that takes jobs already."""
_UNKNOWN: Final = "Invalid node name specified"


def drain(shell: Shell, nodes: Sequence[str], reason: str) -> tuple[Job, ...]:
    """Keeps new jobs off the nodes; the jobs that still run there."""
    if not reason.strip() or not reason.isprintable() or len(reason) > _REASON_MAX:
        raise JobsError(
            f"--reason: {reason!r} is no line of 1 to {_REASON_MAX} characters; say why, for "
            "whoever looks at `sinfo -R`"
        )
    _check_names(nodes)
    _update(shell, nodes, "State=DRAIN", f"Reason={reason.strip()}")
    return jobs_on(shell, nodes)


def resume(shell: Shell, nodes: Sequence[str]) -> None:
    """Lets jobs onto the nodes again; one that takes them already stays as it is."""
    _check_names(nodes)
    for node in nodes:
        _update(shell, (node,), "State=RESUME", harmless=_NOTHING_TO_RESUME)


def await_idle(
    shell: Shell,
    nodes: Sequence[str],
    *,
    say: Callable[[tuple[Job, ...]], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Returns once no job holds one of the nodes; `say` hears of the rest when it changes."""
    before: tuple[str, ...] | None = None
    while jobs := jobs_on(shell, nodes):
        now = tuple(job.id for job in jobs)
        if now != before:
            say(jobs)
            before = now
        pause(_POLL_S)


def _check_names(nodes: Sequence[str]) -> None:
    for node in nodes:
        if not _NAME.fullmatch(node):
            raise JobsError(
                f"{node!r} is no name of a Slurm node, such as worker-0; see `sinfo -N`"
            )


def _update(shell: Shell, nodes: Sequence[str], *changes: str, harmless: str | None = None) -> None:
    named = ",".join(nodes)
    result = shell.run(shlex.join(["scontrol", "update", f"NodeName={named}", *changes]))
    if result.ok or (harmless is not None and harmless in result.stderr):
        return
    error = refused(f"scontrol update {named}", result)
    if _UNKNOWN in result.stderr:
        raise JobsError(f"{error}; `soperator ssh 'sinfo -N'` lists the nodes")
    raise error
