"""Jobs that run on Slurm nodes which a change is about to take: told(outputs, nodes, ...) -> text.

A preview waits some seconds for a login node that is there, and never fails for one that is not.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from infra.jobs import parse
from infra.jobs.errors import JobsError
from infra.jobs.hostlist import expand
from infra.jobs.outputs import outputs_from
from infra.jobs.parse import Job
from infra.jobs.slurm import Shell, refused

WITHIN_S: Final = 4.0
_SHOWN: Final = 20
"""More jobs than these are counted, not listed."""


def user_key(state: Path) -> Path:
    """The private key of the user who deploys: beside SOPERATOR_SSH_PUBLIC_KEY_FILE, or ours."""
    declared = os.environ.get("SOPERATOR_SSH_PUBLIC_KEY_FILE", "")
    own = state / "ssh" / "id_ed25519"
    return Path(declared.removesuffix(".pub")).expanduser() if declared.endswith(".pub") else own


def jobs_on(shell: Shell, nodes: Collection[str]) -> tuple[Job, ...]:
    """Jobs that hold one of the nodes now, in the order of squeue."""
    states = "RUNNING,SUSPENDED,COMPLETING"
    # Not --nodelist: squeue refuses a list with one name that it does not know.
    result = shell.run(
        f"squeue --noheader --states={states} --format={shlex.quote(parse.SQUEUE_FORMAT)}"
    )
    if not result.ok:
        raise refused("squeue", result)
    wanted = frozenset(nodes)
    return tuple(
        job
        for job in parse.squeue(result.stdout)
        if job.where is not None and not wanted.isdisjoint(expand(job.where))
    )


def told(
    stack: str,
    outputs: Mapping[str, Any],
    nodes: Collection[str],
    identity: Path,
    *,
    within_s: float = WITHIN_S,
) -> str:
    """What runs on the nodes, a line each job, or why that is not known; ends in a newline."""
    answer: list[str] = []
    # A daemon: a login node that hangs must not keep the process.
    asking = threading.Thread(
        target=lambda: answer.append(_ask(stack, outputs, nodes, identity)), daemon=True
    )
    asking.start()
    asking.join(within_s)
    late = f"Jobs on these nodes: not checked: no answer in {within_s:g} s\n"
    return answer[0] if answer else late


def _ask(stack: str, outputs: Mapping[str, Any], nodes: Collection[str], identity: Path) -> str:
    # Only here: a preview that drains nothing does not pay for the import.
    from infra.jobs.ssh import Connection

    try:
        endpoint = outputs_from(stack, outputs).endpoint(identity)
        with Connection(endpoint) as connection:
            return describe(jobs_on(connection, nodes))
    except (JobsError, OSError) as error:
        return f"Jobs on these nodes: not checked: {error}\n"


def describe(jobs: Collection[Job]) -> str:
    """The jobs as text, ending in a newline."""
    if not jobs:
        return "Jobs on these nodes: none runs now\n"
    return f"Jobs on these nodes, which the change ends: {len(jobs)}\n{listed(jobs)}"


def listed(jobs: Collection[Job]) -> str:
    """A line for each job, up to a number, ending in a newline."""
    lines = [
        f" {job.id} {job.name}, {job.elapsed or '0:00'} so far, on {job.where}"
        for job in list(jobs)[:_SHOWN]
    ]
    if len(jobs) > _SHOWN:
        lines.append(f" and {len(jobs) - _SHOWN} more: squeue")
    return "\n".join(lines) + "\n"
