"""Parts of a bundle that the login node has: nodes, queue, accounting, ends of logs.

Owns the command lines. All of them read.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell
from infra.support.part import Part

_NUM_LOGS: Final = 5
_NUM_LINES: Final = 200
_FIELDS: Final = (
    "JobID,JobName,User,Partition,State,ExitCode,Submit,Start,End,AllocTRES,MaxRSS,NodeList"
)
_COMMANDS: Final = {
    "slurm/nodes.txt": ("nodes with their states", "sinfo -N -l; sinfo -R; scontrol show nodes"),
    "slurm/queue.txt": ("queue", "squeue --all --long; squeue --start; sprio --long"),
    "slurm/jobs.txt": ("details of known jobs", "scontrol show jobs"),
    "slurm/accounting.txt": (
        "jobs of the last day",
        f"sacct --allusers --duplicates --starttime=now-1days --parsable2 --format={_FIELDS}",
    ),
    "slurm/config.txt": ("configuration", "scontrol show config; scontrol show partitions"),
    "slurm/disks.txt": ("filesystems", "df -h; df -i; findmnt --list"),
}


class Opens(Protocol):
    """Opens the connection at the first part that needs it, and remembers that it could not."""

    def __call__(self) -> tuple[StackOutputs, Shell]: ...


def parts_of_cluster(opens: Opens) -> list[Part]:
    """What Slurm and the login node say."""

    def ask(command: str) -> Callable[[], str]:
        def answer() -> str:
            _, shell = opens()
            # Every command runs, whatever became of the one before it.
            result = shell.run(f"( {command} ) 2>&1")
            return f"{result.stdout}{result.stderr}\nexit status {result.exit_code}\n"

        return answer

    def logs() -> str:
        outputs, shell = opens()
        folder = shlex.quote(outputs.places["logs"])
        newest = f"ls -1t {folder}/*.out | head -n {_NUM_LOGS}"
        result = shell.run(f'{newest} | while read -r f; do tail -v -n {_NUM_LINES} "$f"; done')
        return result.stdout or f"{outputs.places['logs']}: no log of a job\n"

    parts = [
        Part(name=name, says=says, gather=ask(command))
        for name, (says, command) in _COMMANDS.items()
    ]
    return [*parts, Part(name="slurm/logs.txt", says="ends of the newest logs", gather=logs)]


class Once:
    """A connection that is made once; when that fails, every part has the same reason."""

    def __init__(
        self, closing: ExitStack, make: Callable[[ExitStack], tuple[StackOutputs, Shell]]
    ) -> None:
        self._closing, self._make = closing, make
        self._made: tuple[StackOutputs, Shell] | None = None
        self._error: Exception | None = None

    def __call__(self) -> tuple[StackOutputs, Shell]:
        if self._error is not None:
            raise self._error
        if self._made is None:
            try:
                self._made = self._make(self._closing)
            except Exception as error:
                self._error = error
                raise
        return self._made
