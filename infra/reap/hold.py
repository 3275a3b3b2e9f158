"""Keeps new jobs off a cluster while it is paused: hold(shell), release(shell, partitions).

A partition in DRAIN takes no new job; those that it has go on (scontrol(1), PARTITIONS). slurmctld
recovers no state of partitions when it starts (slurmctld(8), -r), so a resumed cluster has none of
it. Owns the command lines.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from infra.jobs.slurm import Shell, refused

_PARTITION: Final = re.compile(r"^PartitionName=(\S+) .*?\bState=(\S+)", re.MULTILINE)


def hold(shell: Shell) -> tuple[str, ...]:
    """Names of the partitions that took jobs and now take none; all of them, or an error."""
    result = shell.run("scontrol show partition --all --oneliner")
    if not result.ok:
        raise refused("scontrol show partition", result)
    partitions = tuple(name for name, state in _PARTITION.findall(result.stdout) if state == "UP")
    try:
        _update(shell, partitions, "DRAIN")
    except BaseException:
        release(shell, partitions)
        raise
    return partitions


def release(shell: Shell, partitions: Sequence[str]) -> None:
    """Lets jobs into the partitions again."""
    _update(shell, partitions, "UP")


def how_to_release(stack: str, partitions: Sequence[str]) -> str:
    """What to type where `release` did not come through."""
    steps = "; ".join(_command(name, "UP") for name in partitions)
    return f"soperator ssh -s {stack} {shlex.quote(steps)}"


def _update(shell: Shell, partitions: Sequence[str], state: str) -> None:
    for name in partitions:
        result = shell.run(_command(name, state))
        if not result.ok:
            raise refused(f"scontrol update PartitionName={name}", result)


def _command(partition: str, state: str) -> str:
    return shlex.join(["scontrol", "update", f"PartitionName={partition}", f"State={state}"])
