"""What slurmctld runs to power nodes of elastic sets up and down, and what it asked for.

Stands for Soperator's power manager: the programs only leave a request in the shared folder, a
file each; the operator's stand-in takes them into the NodeSetPowerState and starts or ends slurmd.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.local.slurm.pod import STATE_PATH

RESUME: Final = "resume"
SUSPEND: Final = "suspend"
FOLDER: Final = "power"
_REQUESTS: Final = "requests"
_PARTIAL: Final = ".new"
# The name sorts by time: a node that goes and comes again must not end as the one that went. No
# part of it is read here without the whole: a file gets its name once it is written.
_PROGRAM: Final = """#!/bin/sh
set -e
export PATH={path} SLURM_CONF={state}/slurm.conf
request={state}/{folder}/{requests}/$(date +%s%N)-$$-{verb}
scontrol show hostnames "$1" > "$request{partial}"
mv "$request{partial}" "$request"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call of slurmctld's."""

    path: Path
    powers_up: bool
    nodes: tuple[str, ...]


def program(verb: str) -> str:
    """Path of the program in a pod."""
    return f"{STATE_PATH}/{FOLDER}/{verb}"


def write_programs(shared: Path, path: str) -> None:
    """Puts both programs into the shared folder; they find Slurm on `path`."""
    (shared / FOLDER / _REQUESTS).mkdir(parents=True, exist_ok=True)
    for verb in (RESUME, SUSPEND):
        program = shared / FOLDER / verb
        text = _PROGRAM.format(
            state=STATE_PATH,
            folder=FOLDER,
            requests=_REQUESTS,
            verb=verb,
            partial=_PARTIAL,
            path=path,
        )
        if not program.exists() or program.read_text() != text:
            program.write_text(text)
            program.chmod(0o755)


def requests(shared: Path) -> tuple[Request, ...]:
    """Everything that was asked for and not yet forgotten, oldest first."""
    folder = shared / FOLDER / _REQUESTS
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return tuple(
        Request(
            path=path,
            powers_up=path.name.endswith(f"-{RESUME}"),
            nodes=tuple(path.read_text().split()),
        )
        for path in paths
        if not path.name.endswith(_PARTIAL)
    )


def forget(done: Iterable[Request]) -> None:
    """Removes requests that are in the NodeSetPowerState."""
    for request in done:
        request.path.unlink(missing_ok=True)
