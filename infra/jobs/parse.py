"""Reads what Slurm prints: pure functions from text to values.

Only the parsable formats that Slurm 22.05 and 25.11 share are read: their JSON differs. Owns no
command line but the formats; fixtures of the tests are real output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from infra.jobs.errors import JobsError

SQUEUE_FORMAT = "%A|%j|%T|%M|%V|%S|%E|%R"
"""Job id, name, state, time used, submit time, start time, what it waits for, nodes or reason.

The id is a number for a task of an array too, as in sacct's JobIDRaw, logs and results.
"""
SACCT_FIELDS = "JobIDRaw,JobName,State,ExitCode,Elapsed,Submit,Start,End,NodeList"

# States in which a job may still run. Everything else is an end, what a later Slurm adds too:
# taking an unknown state for an end stops a wait, taking it for life waits for ever.
ACTIVE_STATES = frozenset(
    {
        "PENDING",
        "CONFIGURING",
        "RUNNING",
        "COMPLETING",
        "SUSPENDED",
        "STOPPED",
        "SIGNALING",
        "STAGE_OUT",
        "RESIZING",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SPECIAL_EXIT",
        "POWER_UP_NODE",
        "EXPEDITING",
    }
)
_ABSENT = frozenset({"", "N/A", "Unknown", "None", "(null)", "None assigned"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One Slurm job as the scheduler tells it; times are the cluster's own, as printed."""

    id: str
    name: str
    state: str
    exit_code: int | None = None
    """Exit code of the batch script; 128 + signal where a signal ended it; None before the end."""
    elapsed: str | None = None
    submitted: str | None = None
    started: str | None = None
    ended: str | None = None
    where: str | None = None
    """Nodes it runs or ran on, or the reason why it waits."""
    needs: tuple[str, ...] = ()
    """Ids of the jobs whose success it waits for."""
    limit_at: str | None = None
    """When its time limit ends it; known of a running job that was looked at alone."""

    @property
    def waits(self) -> bool:
        return self.state == "PENDING"

    @property
    def finished(self) -> bool:
        return self.state not in ACTIVE_STATES

    @property
    def succeeded(self) -> bool:
        return self.state == "COMPLETED"

    @property
    def status(self) -> int:
        """The job as one exit status: 0 only for success, never 0 for any other end."""
        if self.succeeded:
            return 0
        return self.exit_code or 1


def submitted_id(output: str) -> str:
    """Job id of `sbatch --parsable`: `12`, or `12;cluster` in a federation."""
    lines = output.strip().splitlines()
    found = re.fullmatch(r"(\d+)(;\S+)?", lines[-1].strip()) if lines else None
    if found is None:
        raise JobsError(
            f"sbatch printed {output!r} instead of a job id; look with `soperator status`"
        )
    return found.group(1)


def squeue(output: str) -> tuple[Job, ...]:
    """Jobs of `squeue --noheader --format=SQUEUE_FORMAT`."""
    jobs = []
    for line in output.splitlines():
        if not line.strip():
            continue
        # A job name may hold the separator: the last six fields and the first never do.
        job_id, _, rest = line.partition("|")
        fields = rest.rsplit("|", 6)
        if len(fields) != 7:
            raise JobsError(f"squeue printed {line!r}, which is not {SQUEUE_FORMAT!r}")
        name, state, elapsed, submitted, started, needs, where = fields
        jobs.append(
            Job(
                id=job_id.strip(),
                name=name,
                state=state,
                elapsed=_present(elapsed),
                submitted=_present(submitted),
                started=_present(started),
                needs=_needs(needs),
                # Of a job that ended without success Slurm may print how, in parentheses.
                where=(
                    _present(where.strip("()"))
                    if state in ACTIVE_STATES or not where.startswith("(")
                    else None
                ),
            )
        )
    return tuple(jobs)


def sacct(output: str) -> tuple[Job, ...]:
    """Jobs of `sacct --noheader --parsable2 --allocations --format=SACCT_FIELDS`."""
    jobs = []
    for line in output.splitlines():
        if not line.strip():
            continue
        job_id, _, rest = line.partition("|")
        fields = rest.rsplit("|", 7)
        if len(fields) != 8:
            raise JobsError(f"sacct printed {line!r}, which is not {SACCT_FIELDS!r}")
        name, state, code, elapsed, submitted, started, ended, where = fields
        state = _state(state)
        jobs.append(
            Job(
                id=job_id,
                name=name,
                state=state,
                exit_code=None if state in ACTIVE_STATES else exit_code(code),
                elapsed=_present(elapsed),
                submitted=_present(submitted),
                started=_present(started),
                ended=_present(ended),
                where=_present(where),
            )
        )
    return tuple(jobs)


def scontrol_job(output: str) -> Job:
    """The job of `scontrol show job --oneliner ID`."""
    fields = {
        name: value.strip()
        for name, value in re.findall(
            r"(?:^| )([A-Z][A-Za-z:/]*)=(.*?)(?= [A-Z][A-Za-z:/]*=|$)", output
        )
    }
    try:
        state = _state(fields["JobState"])
        waiting = state == "PENDING"
        running = state == "RUNNING"
        started = None if waiting else _present(fields.get("StartTime", ""))
        return Job(
            id=fields["JobId"],
            name=fields["JobName"],
            state=state,
            exit_code=None if state in ACTIVE_STATES else exit_code(fields["ExitCode"]),
            # Without a start Slurm 22.05 counts the run time from 1970.
            elapsed=_present(fields.get("RunTime", "")) if started else None,
            submitted=_present(fields.get("SubmitTime", "")),
            started=started,
            ended=None if state in ACTIVE_STATES else _present(fields.get("EndTime", "")),
            where=_present(fields.get("Reason" if waiting else "NodeList", "")),
            needs=_needs(fields.get("Dependency", "")) if waiting else (),
            limit_at=_present(fields.get("EndTime", "")) if running else None,
        )
    except KeyError as error:
        raise JobsError(
            f"scontrol printed {output[:120]!r}, which has no {error.args[0]}"
        ) from error


def exit_code(text: str) -> int:
    """`code:signal` of Slurm as a shell would say it: the code, or 128 + signal."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if found is None:
        raise JobsError(f"Slurm printed the exit code {text!r}, which is not code:signal")
    code, signal = int(found.group(1)), int(found.group(2))
    return 128 + signal if signal else code


def _state(text: str) -> str:
    """The state's name: sacct prints `CANCELLED by 0`."""
    return text.split()[0] if text.split() else text


def _needs(dependency: str) -> tuple[str, ...]:
    """Ids of `afterok:11(unfulfilled),afterok:12_*(unfulfilled)`; other kinds do not need success.

    One kind may name several: `afterok:11:12(unfulfilled)`.
    """
    found = re.findall(r"\bafterok:([\d_*+:]+)", dependency)
    return tuple(re.sub(r"\D.*", "", each) for ids in found for each in ids.split(":"))


def _present(text: str) -> str | None:
    return None if text.strip() in _ABSENT else text.strip()
