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
from pathlib import Path
from typing import Any, Final

from cost.runs.ledger import FILE_NAME, ForecastEntry, Ledger
from infra.clients import slurm
from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job
from infra.clients.ssh import PATIENCE_S, Connection, ConnectionLostError, reopen
from infra.jobs.history import IS_OWN, Submission, submissions
from infra.jobs.records import parse_object

_POLL_S = 0.2
_STATE_EVERY_S = 1.0
_RECORD_BYTES: Final = 1 << 20


def find(
    connection: Connection,
    outputs: StackOutputs,
    job_id: str,
    *,
    state: Path,
    log: Callable[[str], object],
) -> Job:
    """The job as Slurm tells it, or as its run record does, which `log` is told.

    Without accounting Slurm forgets a job minutes after its end.
    """
    try:
        return slurm.find(connection, job_id)
    except UnknownJobError as error:
        path = shlex.quote(f"{outputs.results_path(job_id)}/run_record.json")
        told = connection.run(f"[ -O {path} ] && head -c {_RECORD_BYTES} -- {path}")
        job = of_record(job_id, parse_object(told.stdout))
        if job is not None:
            log(f"job {job_id}: Slurm has forgotten it; this is what its own run record says")
            return job
        made = [each for each in submissions(state, outputs.stack) if each.job_id == job_id]
        names = [each.job for each in made if each.cluster == outputs.login_host_key]
        if not names:
            raise
        raise UnknownJobError(
            f"job {job_id} ({names[0]}): Slurm has forgotten it and it left no run record, so how "
            f"it ended is not known; its log is {outputs.log_path(names[0], job_id)}"
        ) from error


def of_record(job_id: str, record: Mapping[str, Any]) -> Job | None:
    """The job as its run record tells its end; None where that says nothing of it."""
    code, name = record.get("exit_code"), record.get("job")
    if not isinstance(code, int) or not isinstance(name, str):
        return None
    state = "FAILED" if code else "COMPLETED"
    return Job(id=job_id, name=name, state=state, exit_code=code)


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
    job, received = slurm.find(connection, job_id), 0
    on_state(job)
    while True:
        try:
            if received > _size(connection, log_path):
                received = 0  # the file is another one: somebody emptied it meanwhile
            # Polling, because inotify sees nothing of what another node writes to a shared
            # filesystem. The session's sshd is watched, because tail outlives a lost connection
            # that it has no line for.
            command = (
                f"exec tail --bytes=+{received + 1} -F ---disable-inotify "
                f"--sleep-interval={_POLL_S} --pid=$PPID {shlex.quote(log_path)} 2>/dev/null"
            )
            looked_at = time.monotonic()
            for chunk in connection.stream(command, poll_s=_POLL_S):
                if chunk:
                    write(chunk)
                    received += len(chunk)
                if job.finished and received >= _size(connection, log_path):
                    break
                if not job.finished and time.monotonic() - looked_at >= _STATE_EVERY_S:
                    seen, job = job, slurm.find(connection, job.id)
                    looked_at = time.monotonic()
                    if (job.state, job.where) != (seen.state, seen.where):
                        on_state(job)
                    on_look(job)
            return job
        except ConnectionLostError as error:
            on_lost(error)
            reopen(connection, patience_s=patience_s)


def path_of(shell: slurm.Shell, outputs: StackOutputs, job: Job) -> str:
    """Path of the job's log: in the user's folder, or in the place, where jobs of root wrote."""
    own, before = (each.log_path(job.name, job.id) for each in (outputs, outputs.before))
    own_word, before_word = shlex.quote(own), shlex.quote(before)
    is_older = shell.run(f"{IS_OWN}[ ! -e {own_word} ] && is_own {before_word}").ok
    return before if is_older else own


def read(
    connection: Connection, log_path: str, write: Callable[[bytes], None], *, start: int = 0
) -> None:
    """Writes the log as it is now, but for its first `start` bytes."""
    path = shlex.quote(log_path)
    if not connection.run(f"test -r {path}").ok:
        raise JobsError(
            f"{log_path}: no log yet; the job has not started (see `soperator status -s STACK`)"
        )
    for chunk in connection.stream(f"tail --bytes=+{start + 1} {path}", poll_s=_POLL_S):
        write(chunk)


def _size(connection: Connection, log_path: str) -> int:
    """Bytes in the log; 0 where the job ended before it had one."""
    result = connection.run(f"wc -c < {shlex.quote(log_path)} 2>/dev/null || echo 0")
    return slurm.count(result.stdout.strip(), f"{log_path}: the login node")


def _table(name: str) -> dict[str, list[str]]:
    """Rows of a table beside this file by their first cell, without the heading."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()[1:]
    return {first: rest for first, *rest in (line.split("\t") for line in lines)}


# Codes of https://slurm.schedmd.com/job_reason_codes.html (read 2026-11-21); those of several words
# are state_desc of slurmctld/job_mgr.c of 25.11.3, which squeue prints in place of a code.
_WORDS: Final = {reason: means for reason, (means,) in _table("waits.tsv").items()}
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


def state_line(job: Job) -> str:
    """Where the job is in its life: why it waits, or its state and its nodes."""
    if job.waits:
        return f"job {job.id} {job.name} waits: {in_words(job.where)}"
    where = f" on {job.where}" if job.where else ""
    return f"job {job.id} {job.name} is {job.state}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one job."""

    kind: str
    """A word of ends.tsv, or FAILED."""
    cause: str
    next_step: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.cause}; {self.next_step}"


# States of https://slurm.schedmd.com/job_state_codes.html (read 2026-11-21); the rest is FAILED.
_OF_STATE: Final = {
    "OUT_OF_MEMORY": "OOM",
    "BOOT_FAIL": "NODE_FAIL",
    "DEADLINE": "TIMEOUT",
    "REVOKED": "CANCELLED",
}
_OF_EXIT_CODE: Final = {70: "OOM", 75: "PREEMPTED"}
_FAILED: Final = "FAILED"
# `server TIMEOUT`: an end that means another thing for a server than for a job that saves. 137 is
# no certain sign: Slurm says OUT_OF_MEMORY only where it limits memory itself, and the kernel's
# killer and a person's `kill -9` look alike.
_ENDS: Final = {end: (cause, step) for end, (cause, step) in _table("ends.tsv").items()}
KINDS: Final = frozenset({_FAILED, *filter(str.isidentifier, _ENDS)})
"""How a job ends."""
FAILURES: Final = {int(end): _ENDS[end] for end in _ENDS if end.isdecimal()}
"""Exit code -> cause and next step of a job that failed."""


def outcome(job: Job, stack: str, *, is_server: bool = False) -> Outcome | None:
    """What the job's end means; None while it may still run. A server has nothing to resume."""
    if not job.finished:
        return None
    kind = _OF_STATE.get(job.state, job.state)
    if kind not in KINDS or kind == _FAILED:
        kind = _OF_EXIT_CODE.get(job.exit_code or 0, _FAILED)
    own = _ENDS.get(f"server {kind}") if is_server else None
    cause, step = own or _ENDS.get(kind) or _failure(job)
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
