"""A job until its end: its log as it grows, what a wait means, how it ended, what it takes along.

A log is over when the job has finished and every byte of its file was read; a connection that is
lost meanwhile costs no byte and doubles none.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Final

from cost.runs.ledger import FILE_NAME, ForecastEntry, Ledger
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.clients.ssh import PATIENCE_S, Connection, ConnectionLostError, reopen
from infra.jobs.submit import Submission

_POLL_S = 0.2
_STATE_EVERY_S = 1.0


def follow(
    connection: Connection,
    log_path: str,
    job_id: str,
    *,
    write: Callable[[bytes], None],
    on_state: Callable[[Job], None] = lambda _job: None,
    on_look: Callable[[Job], None] = lambda _job: None,
    on_lost: Callable[[ConnectionLostError], None] = lambda _error: None,
    patience_s: float = PATIENCE_S,
) -> Job:
    """Writes the log as it grows, calls `on_state` when the state changes, returns the end.

    `on_look` has the job about every second until it ends, whether its state changed or not. A lost
    connection is opened again for `patience_s`, and the log goes on at the byte it had.
    """
    log = _Log(path=log_path, job=slurm.find(connection, job_id))
    on_state(log.job)
    while True:
        try:
            _read_on(connection, log, write, on_state, on_look)
            return log.job
        except ConnectionLostError as error:
            on_lost(error)
            reopen(connection, patience_s=patience_s)


@dataclass(slots=True, kw_only=True)
class _Log:
    """How far a log was read, and its job as it was seen last."""

    path: str
    job: Job
    received: int = 0
    """Bytes of the file that were written out."""


def _read_on(
    connection: Connection,
    log: _Log,
    write: Callable[[bytes], None],
    on_state: Callable[[Job], None],
    on_look: Callable[[Job], None],
) -> None:
    """Reads from where the log stands until its job ended and every byte came."""
    if log.received > _size(connection, log.path):
        log.received = 0  # the file is another one: somebody emptied it meanwhile
    # Polling, because inotify sees nothing of what another node writes to a shared filesystem. The
    # session's sshd is watched, because tail outlives a lost connection that it has no line for.
    command = (
        f"exec tail --bytes=+{log.received + 1} -F ---disable-inotify "
        f"--sleep-interval={_POLL_S} --pid=$PPID {shlex.quote(log.path)} 2>/dev/null"
    )
    looked_at = time.monotonic()
    for chunk in connection.stream(command, poll_s=_POLL_S):
        if chunk:
            write(chunk)
            log.received += len(chunk)
        if log.job.finished and log.received >= _size(connection, log.path):
            return
        if not log.job.finished and time.monotonic() - looked_at >= _STATE_EVERY_S:
            seen, log.job = log.job, slurm.find(connection, log.job.id)
            looked_at = time.monotonic()
            if (log.job.state, log.job.where) != (seen.state, seen.where):
                on_state(log.job)
            on_look(log.job)


def read(connection: Connection, log_path: str) -> bytes:
    """The log as it is now."""
    result, content = connection.run_bytes(f"cat {shlex.quote(log_path)}")
    if not result.ok:
        raise JobsError(
            f"{log_path}: no log yet; the job has not started (see `soperator status -s STACK`)"
        )
    return content


def _size(connection: Connection, log_path: str) -> int:
    """Bytes in the log; 0 where the job ended before it had one."""
    result = connection.run(f"wc -c < {shlex.quote(log_path)} 2>/dev/null || echo 0")
    return int(result.stdout.strip() or 0)


# Codes of https://slurm.schedmd.com/job_reason_codes.html (read 2026-11-21); those of several words
# are state_desc of slurmctld/job_mgr.c of 25.11.3, which squeue prints in place of a code.
_WORDS: Final = {
    "Priority": "jobs of higher priority are first",
    "Resources": "waits until enough nodes are free",
    "Dependency": "waits for the job that it depends on",
    "DependencyNeverSatisfied": (
        "the job that it depends on failed, so it never starts: soperator cancel ID -s STACK"
    ),
    "BeginTime": "its start time has not come, or Slurm lets a requeued job rest (cred_expire)",
    "JobHeldUser": "held by its user: scontrol release ID",
    "JobHeldAdmin": "held by an administrator",
    "JobHoldMaxRequeue": "requeued too often and held: look at its log, then scontrol release ID",
    "launch failed requeued held": (
        "a node could not start it, so it is held for ever: sinfo -R names the node; where that "
        "says Duplicate jobid, the controller was lost as the job began: soperator cancel ID "
        "-s STACK, soperator cluster drain NODE --undo -s STACK, and submit it again"
    ),
    "launch failure limit exceeded requeued held": (
        "nodes could not start it several times, so it is held: look at sinfo -R, then scontrol "
        "release ID"
    ),
    "user env retrieval failed requeued held": (
        "a node could not read its user's environment, so it is held: look at sinfo -R, then "
        "scontrol release ID"
    ),
    "JobLaunchFailure": "a node could not start it: look at sinfo -R",
    "Licenses": "waits for a licence",
    "NodeDown": "a node that it needs is down: look at sinfo -R",
    "PartitionDown": "its partition takes no jobs to run: look at sinfo",
    "PartitionInactive": "its partition is inactive: look at sinfo",
    "PartitionNodeLimit": "asks for more nodes than its partition gives a job: it never starts",
    "PartitionTimeLimit": "asks for more time than its partition gives a job: it never starts",
    "BadConstraints": "asks for what no node has: it never starts",
    "ReqNodeNotAvail": "a node that it needs is drained, down or reserved: look at sinfo -R",
    "Reservation": "waits for its reservation",
    "Cleaning": "its last run is still being cleaned up",
    "InvalidAccount": "its Slurm account does not exist: declare it in slurm.accounts",
    "InvalidQOS": "its QOS does not exist: declare it in slurm.qos",
    "Prolog": "the checks before a job run on its nodes",
    "SchedDefer": "the scheduler is busy",
    "None": "the scheduler has not looked at it yet",
}
_LIMIT: Final = re.compile(
    r"(?P<who>Assoc|QOS)(?P<scope>Grp|Max)?(?P<what>[A-Za-z]*?)"
    r"(?:PerUser|PerAccount|PerJob|PerNode)?(?:Limit|Minutes)$"
)
_UNAVAILABLE: Final = re.compile(r"ReqNodeNotAvail, ?(?:UnavailableNodes|May be reserved)[: ]*(.*)")


def why(job: Job, names: Mapping[str, str]) -> str:
    """Why the job waits; `names` are those of other jobs, by id."""
    if job.where != "Dependency" or not job.needs:
        return in_words(job.where)
    needed = [f"{names[each]} ({each})" if each in names else f"job {each}" for each in job.needs]
    fails = "it fails" if len(needed) == 1 else "one fails"
    return f"waits until {' and '.join(needed)} succeeded; if {fails}, this one is cancelled"


def in_words(reason: str | None) -> str:
    """The reason for people; a reason that Slurm added since is given as it came."""
    if reason is None:
        return _WORDS["None"]
    if (found := _WORDS.get(reason) or _WORDS.get(reason.replace("_", " "))) is not None:
        return found
    unavailable = _UNAVAILABLE.match(reason)
    if unavailable:
        nodes = unavailable.group(1).strip()
        return _WORDS["ReqNodeNotAvail"] + (f" ({nodes})" if nodes else "")
    limit = _LIMIT.match(reason)
    if limit:
        whose = "team's" if limit.group("who") == "Assoc" else "QOS's"
        return f"the {whose} limit is reached ({reason}): it starts when its other jobs end"
    return reason


class OutcomeClass(StrEnum):
    """How a job ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    OOM = "OOM"
    NODE_FAIL = "NODE_FAIL"
    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one job."""

    kind: OutcomeClass
    cause: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.cause}; {self.next_step}"


# States of https://slurm.schedmd.com/job_state_codes.html (read 2026-11-21); the rest is FAILED.
_OF_STATE: Final = {
    "COMPLETED": OutcomeClass.COMPLETED,
    "OUT_OF_MEMORY": OutcomeClass.OOM,
    "NODE_FAIL": OutcomeClass.NODE_FAIL,
    "BOOT_FAIL": OutcomeClass.NODE_FAIL,
    "TIMEOUT": OutcomeClass.TIMEOUT,
    "DEADLINE": OutcomeClass.TIMEOUT,
    "PREEMPTED": OutcomeClass.PREEMPTED,
    "CANCELLED": OutcomeClass.CANCELLED,
    "REVOKED": OutcomeClass.CANCELLED,
}
_OF_EXIT_CODE: Final = {
    70: OutcomeClass.OOM,
    75: OutcomeClass.PREEMPTED,
}
_DRAIN: Final = "soperator cluster drain NODE --reason TEXT -s {stack}"
_PLAIN: Final = {
    OutcomeClass.COMPLETED: ("its result is on the cluster", "soperator pull {id} -s {stack}"),
    OutcomeClass.OOM: (
        "GPU or host memory was full",
        (
            "training: lower train.micro_batch_size and raise train.gradient_accumulation as much; "
            "a server: lower serve.limits; or ask for a preset with more memory (soperator cost "
            "size)"
        ),
    ),
    OutcomeClass.NODE_FAIL: (
        "a node went away",
        (
            "a declared job is queued again by itself; where soperator status -s {stack} shows it "
            "no more: soperator submit {name} -s {stack}; "
            f"{_DRAIN} keeps jobs off a node that fails twice"
        ),
    ),
    OutcomeClass.TIMEOUT: (
        "it reached its time limit",
        (
            "raise jobs[].time_limit and run pulumi up; with `--set train.resume=auto` a training "
            "goes on from its last checkpoint"
        ),
    ),
    OutcomeClass.PREEMPTED: (
        "it was asked to stop, by a preemption or shortly before its time limit, and saved",
        "nothing where it is queued again; else submit it with --set train.resume=auto",
    ),
    OutcomeClass.CANCELLED: ("somebody cancelled it", "soperator submit {name} -s {stack}"),
}
_OF_A_SERVER: Final = {
    OutcomeClass.TIMEOUT: (
        "it reached its time limit",
        (
            "submit it again: soperator submit {name} -s {stack}; to serve longer at once, raise "
            "jobs[].time_limit and run pulumi up first"
        ),
    ),
    OutcomeClass.PREEMPTED: (
        (
            "it was asked to stop, by a preemption or shortly before its time limit; its answers "
            "were cut off at the end of the drain"
        ),
        (
            "nothing where it is queued again; else submit it again: soperator submit {name} -s "
            "{stack}"
        ),
    ),
}
"""Ends that mean another thing for a server than for a job that saves."""
FAILURES: Final = {
    1: (
        "an error that has no code of its own",
        "the traceback is in soperator logs {id} -s {stack}",
    ),
    2: (
        "recipe, override or environment are wrong",
        "the log's line with (exit 2) names the key, what came and what is allowed",
    ),
    65: ("rows, tokenizer, model or checkpoint cannot be used", "the log names the file"),
    69: ("a package that it needs is not there; nothing was measured", "the log names it"),
    71: (
        "a rank or the network between ranks was lost",
        f"look for the first failed rank in the log; after a second time: {_DRAIN}",
    ),
    72: (
        "the loss or a gradient is NaN or infinite",
        "lower train.learning_rate or raise train.warmup_steps; prefer bf16 to fp16",
    ),
    73: (
        "a checkpoint that was needed is not saved, or a filesystem is full",
        (
            "free what the log names (soperator status --filesystems -s {stack}), or lower "
            "train.keep_last"
        ),
    ),
    74: ("a process that reads rows died", "give the job more memory"),
    76: (
        "a step or a collective stood still",
        (
            "the rank whose stack stands elsewhere is the cause; raise train.checkpoint.timeout_s "
            "if steps are that long"
        ),
    ),
    77: ("a GPU or its driver failed", f"{_DRAIN}, then submit it again"),
    78: (
        "a node lacks Python, a mount or a shared folder; nothing was started",
        "the log names node and path",
    ),
    # Slurm says OUT_OF_MEMORY only where it limits memory itself: the kernel's killer, and a
    # person's `kill -9`, look alike.
    128 + 9: (
        "it was killed (signal 9): by somebody, or by the kernel because host memory was full",
        (
            "dmesg on the node names it where it was memory: ask for more; else submit it again: "
            "soperator submit {name} -s {stack}"
        ),
    ),
}
"""Exit code -> cause and next step of a job that failed."""


def outcome(job: Job, stack: str, *, is_server: bool = False) -> Outcome | None:
    """What the job's end means; None while it may still run. A server has nothing to resume."""
    if not job.finished:
        return None
    kind = _OF_STATE.get(job.state, OutcomeClass.FAILED)
    if kind is OutcomeClass.FAILED and job.exit_code is not None:
        kind = _OF_EXIT_CODE.get(job.exit_code, kind)
    plain = {**_PLAIN, **_OF_A_SERVER} if is_server else _PLAIN
    cause, step = plain[kind] if kind in plain else _failure(job)
    return Outcome(
        kind=kind, cause=cause, next_step=step.format(id=job.id, name=job.name, stack=stack)
    )


def _failure(job: Job) -> tuple[str, str]:
    """Cause and next step of an end that only the exit code tells apart."""
    code = job.exit_code
    if code is not None and code in FAILURES:
        return FAILURES[code]
    last = "the last lines of soperator logs {id} -s {stack} say why"
    if code is not None and code > 128:
        return f"signal {code - 128} ended it", last
    if code is None:
        return f"Slurm calls it {job.state}", last
    return f"it ended with exit code {code}", last


def waiting_for(ids: Sequence[str], jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Jobs of the queue that wait for the success of these, or of such a job; oldest first."""
    gone, rest = set(ids), list[Job]()
    waiting = [job for job in jobs if job.waits]
    # A job is submitted after what it needs, so one pass in the order of ids finds all.
    for job in sorted(waiting, key=lambda each: int(each.id.split("_")[0])):
        if job.id not in gone and gone.intersection(job.needs):
            gone.add(job.id)
            rest.append(job)
    return tuple(rest)


def rest_lines(job: Job, submissions: Sequence[Submission], cluster: str) -> tuple[str, ...]:
    """What the end of the job means for those that needed it, as submitted from this machine."""
    made = {each.job_id: each for each in submissions if each.cluster == cluster}
    if job.succeeded or job.id not in made:
        return ()
    lines: list[str] = []
    own = made[job.id]
    if job.state == "CANCELLED" and own.after and job.where is None:  # no node: it never started
        needed = [
            f"{made[each].job} ({each})" if each in made else f"job {each}"
            for each in own.after.split(":")
        ]
        lines.append(
            f"it was to start once {' and '.join(needed)} succeeded: where one did not, Slurm "
            f"cancelled it; soperator status ID -s {own.stack} of that one says why"
        )
    gone, last = {job.id}, None
    for each in sorted(made.values(), key=lambda one: int(one.job_id)):
        if each.after and gone.intersection(each.after.split(":")):
            gone.add(each.job_id)
            last = each
            lines.append(f"{each.job} ({each.job_id}) needed it and does not run")
    if last is not None:
        lines.append(
            "once it is mended, this submits what is not done: "
            f"soperator submit {last.job} --pipeline -s {last.stack}"
        )
    return tuple(lines)


def forecast_hours(state: Path, stack: str, cluster: str) -> Mapping[str, Decimal]:
    """Job id -> hours that were forecast when it was submitted from this machine."""
    entries = Ledger(state / "runs" / stack / FILE_NAME).read().entries
    return {
        entry.job_id: entry.hours
        for entry in entries
        if isinstance(entry, ForecastEntry) and entry.cluster == cluster and entry.hours is not None
    }


def expected(job: Job, hours: Decimal | None) -> str | None:
    """What comes next and when, in the cluster's own time; None where nothing is known."""
    if job.waits:
        return None if job.started is None else f"starts {job.started}"
    if job.state != "RUNNING":
        return None
    started = _time(job.started)
    if started is not None and hours is not None:
        end = started + timedelta(hours=float(hours))
        return f"ends {end.isoformat(timespec='seconds')} by forecast"
    return None if job.limit_at is None else f"ends {job.limit_at} at the latest"


def _time(text: str | None) -> datetime | None:
    """A time as Slurm prints it; None where a site's SLURM_TIME_FORMAT prints another."""
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
