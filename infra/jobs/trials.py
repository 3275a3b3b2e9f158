"""Trials of a search as the cluster knows them: what ran, what came of it, what is on its way.

Owns two round trips: files that tasks left in their results (`trial.json` by infra/render/search.py
and the run record), and states by number of the task. Ranks nothing.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import ACTIVE_STATES
from infra.jobs.slurm import Shell, refused
from infra.render.search import TRIAL_FILE

_RECORD: Final = "run_record.json"
# One line a file, whatever its layout: JSON text holds no line end of its own.
_FILES: Final = r"""
cd {results} 2>/dev/null || exit 0
for file in */{trial}; do
  [ -f "$file" ] && grep -qF {wanted} "$file" || continue
  job=${{file%%/*}}
  printf '%s\n' "$job"
  tr -d '\r\n' < "$file"; echo
  if [ -f "$job/{record}" ]; then tr -d '\r\n' < "$job/{record}"; fi; echo
done
"""
_QUEUE: Final = "%A|%F|%K|%T"
_SACCT: Final = "JobIDRaw,JobID,State"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRun:
    """One task that started."""

    job_id: str
    """Its own id, as logs and results have it."""
    array_id: str
    settings: tuple[str, ...]
    record: Mapping[str, Any] | None
    """Its run record; None while it runs, or where it left none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task as Slurm has it."""

    job_id: str
    array_id: str
    number: int
    """Of the task in its array."""
    state: str

    @property
    def is_active(self) -> bool:
        """Whether it may still run."""
        return self.state in ACTIVE_STATES


def runs_of(shell: Shell, outputs: StackOutputs, search: str) -> tuple[TrialRun, ...]:
    """Every task of the search that left its mark, by id: the last to start has its array's."""
    script = _FILES.format(
        results=shlex.quote(outputs.places["results"]),
        trial=TRIAL_FILE,
        record=_RECORD,
        wanted=shlex.quote(f'"search": {json.dumps(search)},'),
    )
    result = shell.run("bash -s", stdin=script.encode())
    if not result.ok:
        raise refused(f"{search}: results", result)
    lines = result.stdout.splitlines()
    found = [
        run
        for job_id, trial, record in zip(lines[0::3], lines[1::3], lines[2::3], strict=False)
        if (run := _run(job_id, trial, record)) is not None
    ]
    return tuple(sorted(found, key=lambda run: int(run.job_id)))


def states_of(shell: Shell, search: str) -> tuple[TaskState, ...]:
    """Tasks of the search that Slurm knows; the queue alone where accounting is off."""
    name = shlex.quote(search)
    result = shell.run(
        f"squeue --array --noheader --states=all --name={name} --format={shlex.quote(_QUEUE)}; "
        f"echo --; sacct --allusers --noheader --parsable2 --allocations --name={name} "
        f"--format={_SACCT} --starttime=now-31days"
    )
    queued, separator, accounted = result.stdout.partition("--\n")
    if not separator or (not result.ok and "accounting storage" not in result.stderr):
        raise refused("squeue", result)
    tasks = {task.job_id: task for task in _accounted(accounted)}
    # Waiting tasks share the id of the array until they start: they are told apart by number.
    waiting: list[TaskState] = []
    for task in _queued(queued):
        if task.state == "PENDING":
            waiting.append(task)
        elif task.job_id not in tasks or task.is_active:
            tasks[task.job_id] = task
    return (*tasks.values(), *waiting)


def _run(job_id: str, trial: str, record: str) -> TrialRun | None:
    """The run of three lines; None for files that are damaged or of something else."""
    try:
        values = json.loads(trial)
        left = json.loads(record) if record else None
        return TrialRun(
            job_id=str(int(job_id)),
            array_id=str(values["array"]),
            settings=tuple(str(each) for each in values["settings"]),
            record=left if isinstance(left, dict) else None,
        )
    except (ValueError, TypeError, KeyError):
        return None


def _queued(output: str) -> Sequence[TaskState]:
    tasks: list[TaskState] = []
    for line in output.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            raise JobsError(f"squeue printed {line!r}, which is not {_QUEUE!r}")
        job_id, array_id, number, state = (field.strip() for field in fields)
        if number.isdecimal():
            tasks.append(
                TaskState(job_id=job_id, array_id=array_id, number=int(number), state=state)
            )
    return tasks


def _accounted(output: str) -> Sequence[TaskState]:
    """Tasks of sacct; waiting ones are those of the queue, which is never late."""
    tasks: list[TaskState] = []
    for line in output.splitlines():
        fields = line.split("|")
        found = re.fullmatch(r"(\d+)_(\d+)", fields[1]) if len(fields) == 3 else None
        if found is not None and fields[2].split()[0] != "PENDING":
            tasks.append(
                TaskState(
                    job_id=fields[0],
                    array_id=found.group(1),
                    number=int(found.group(2)),
                    state=fields[2].split()[0],
                )
            )
    return tasks
