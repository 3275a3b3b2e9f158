"""Slurm through a shell on the login node: submit, look, cancel; typed results.

Owns the command lines. Text is read in parse.py; what a command means to a user is in submit.py,
status.py and cancel.py. Every call is one round trip.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Protocol

from infra.jobs import parse
from infra.jobs.errors import JobsError, UnknownJobError, last_words
from infra.jobs.parse import Job
from infra.jobs.ssh import Result

_GONE = "Invalid job id"


class Shell(Protocol):
    """Where commands run: an SSH connection, or recorded output in a test."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result: ...


def sbatch_command(
    script: str,
    args: Sequence[str],
    *,
    after: str | None = None,
    export: Sequence[str] = (),
    nodes: Sequence[str] = (),
    array: str | None = None,
    comment: str | None = None,
    test_only: bool = False,
) -> str:
    """The shell command that submits `script`; `args` go to the job's module.

    `after`: ids whose success it needs, as Slurm takes them: `11` or `11:12`. `nodes`: what it must
    run on; none: what Slurm chooses. `array`: tasks of the script's array; None: all.
    """
    options = ["--test-only"] if test_only else ["--parsable"]
    if after is not None:
        options += dependency(":".join(job_id(each) for each in after.split(":")))
    if nodes:
        options.append(f"--nodelist={','.join(nodes)}")
    if array is not None:
        options.append(f"--array={array}")
    if comment is not None:
        options.append(f"--comment={comment}")
    if export:
        options.append(f"--export={','.join(['ALL', *export])}")
    return shlex.join(["sbatch", *options, script, *args])


def dependency(after: str) -> list[str]:
    """Options of a job that needs the success of others."""
    # Without the second option a job whose dependency failed waits for ever.
    return [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]


def find(shell: Shell, wanted: str) -> Job:
    """The job with this id: from the scheduler while it knows it, else from accounting."""
    number = job_id(wanted)
    result = shell.run(f"scontrol show job --oneliner {number} || sacct {_sacct(number)}")
    if result.ok and result.stdout.startswith("JobId="):
        # The id of an array is that of one of its tasks, and all of them are shown.
        lines = result.stdout.splitlines()
        own = (line for line in lines if line.startswith(f"JobId={number} "))
        return parse.scontrol_job(next(own, lines[0]))
    if result.ok:
        jobs = parse.sacct(result.stdout)
        if jobs:
            return next((job for job in reversed(jobs) if job.id == number), jobs[-1])
    if result.ok or _GONE in result.stderr:
        raise UnknownJobError(
            f"job {number}: Slurm knows no such job; `soperator status` lists them"
        )
    raise refused("scontrol show job", result)


def recent(shell: Shell, *, days: int, mine: bool = False) -> tuple[Job, ...]:
    """Jobs of the last `days` days, oldest first; only the queue where accounting is off.

    `mine`: those of the user that the shell is of.
    """
    me, whose = ("--me ", '--user="$(id -un)"') if mine else ("", "--allusers")
    result = shell.run(
        f"squeue {me}--noheader --states=all --format={shlex.quote(parse.SQUEUE_FORMAT)}; "
        f"echo --; sacct {whose} {_sacct()} --starttime=now-{days}days"
    )
    queued, separator, accounted = result.stdout.partition("--\n")
    if not separator or (not result.ok and "accounting storage" not in result.stderr):
        raise refused("squeue", result)
    jobs = {job.id: job for job in parse.sacct(accounted)}
    for job in parse.squeue(queued):
        # The queue is never late, accounting may be by seconds; only accounting has exit codes.
        if job.id not in jobs or not job.finished:
            jobs[job.id] = job
    return tuple(sorted(jobs.values(), key=lambda job: int(job.id.split("_")[0])))


def cancel(shell: Shell, ids: Sequence[str]) -> None:
    """Ends these jobs, running or not."""
    result = shell.run(shlex.join(["scancel", *(job_id(each) for each in ids)]))
    if not result.ok:
        raise refused("scancel", result)


def job_id(text: str) -> str:
    """A job id in its own form; anything else is refused before it reaches a shell."""
    if not text.isascii() or not text.isdecimal():
        raise JobsError(
            f"{text!r} is not a job id (a number such as 12); `soperator status` lists them"
        )
    return text


def refused(what: str, result: Result) -> JobsError:
    """The error for a Slurm command that did not work, with its own last words."""
    return JobsError(f"{what}: exit {result.exit_code}: {last_words(result.stderr)}")


def _sacct(number: str | None = None) -> str:
    jobs = f"--jobs={number} " if number else ""
    return f"{jobs}--noheader --parsable2 --allocations --format={parse.SACCT_FIELDS}"
