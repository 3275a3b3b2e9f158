"""Slurm through a shell on the login node: submit, find, cancel, and which nodes jobs held when.

Every call is one round trip. Only the parsable formats that Slurm 22.05 and 25.11 share are read:
their JSON differs. Fixtures of the tests are real output.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from cost.runs.ledger import BY_HAND, Occupancy
from cost.runs.spend import JobUse
from infra.clients.errors import JobsError, UnknownJobError, last_words
from stacks.machines import expand_nodes
from stacks.schedule import slurm_seconds

if TYPE_CHECKING:
    from infra.clients.ssh import Result

_GONE = "Invalid job id"


class Shell(Protocol):
    """Where commands run: an SSH connection, or recorded output in a test."""

    def run(self, command: str, *, stdin: bytes = b"") -> Result: ...


class Carrier(Shell, Protocol):
    """One that also waits for what takes as long as its data: hashes, copies, installations."""

    def run_bytes(self, command: str, *, stdin: bytes = b"") -> tuple[Result, bytes]: ...


def sbatch_command(
    script: str,
    args: Sequence[str],
    *,
    after: str | None = None,
    export: Sequence[str] = (),
    nodes: Sequence[str] = (),
    array: str | None = None,
    comment: str | None = None,
    hold: bool = False,
    test_only: bool = False,
) -> str:
    """The shell command that submits `script`; `args` go to the job's module.

    `after`: ids whose success it needs, as Slurm takes them: `11` or `11:12`. `nodes`: what it must
    run on; none: what Slurm chooses. `array`: tasks of the script's array; None: all. `hold`: it
    waits for `release`.
    """
    options = ["--test-only"] if test_only else ["--parsable"]
    if after is not None:
        # Without the second option a job whose dependency failed waits for ever.
        options += [f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes"]
    if nodes:
        # The script's range of nodes would add others to these.
        options += [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}"]
    if array is not None:
        options.append(f"--array={array}")
    if comment is not None:
        options.append(f"--comment={comment}")
    if hold:
        options.append("--hold")
    if export:
        options.append(f"--export={','.join(['ALL', *export])}")
    return shlex.join(["sbatch", *options, script, *args])


def find(shell: Shell, wanted: str) -> Job:
    """The job with this id: from the scheduler while it knows it, else from accounting."""
    number = job_id(wanted)
    result = shell.run(f"scontrol show job --oneliner {number} || sacct {_sacct(number)}")
    if result.ok and result.stdout.startswith("JobId="):
        # The id of an array is that of one of its tasks, and all of them are shown.
        lines = result.stdout.splitlines()
        own = (line for line in lines if line.startswith(f"JobId={number} "))
        return scontrol_job(next(own, lines[0]))
    is_gone = _GONE in result.stderr
    if result.ok and (jobs := sacct(result.stdout)):
        job = next((job for job in reversed(jobs) if job.id == number), jobs[-1])
        if is_gone and not job.finished and forgotten(shell, [number]):
            raise UnknownJobError(f"job {number}: {FORGOTTEN_MEANS}")
        return job
    if result.ok or is_gone:
        raise UnknownJobError(
            f"job {number}: Slurm knows no such job; `soperator status -s STACK` lists them"
        )
    raise refused("scontrol show job", result)


def recent(shell: Shell, *, days: int, mine: bool = False) -> tuple[Job, ...]:
    """Jobs of the last `days` days, oldest first; only the queue where accounting is off.

    `mine`: those of the user that the shell is of.
    """
    me, whose = ("--me ", '--user="$(id -un)"') if mine else ("", "--allusers")
    result = shell.run(
        f"squeue {me}--noheader --states=all --format={shlex.quote(SQUEUE_FORMAT)}; "
        f"echo --; sacct {whose} {_sacct()} --starttime=now-{days}days"
    )
    queued, separator, accounted = result.stdout.partition("--\n")
    if not separator or (not result.ok and "accounting storage" not in result.stderr):
        raise refused("squeue", result)
    jobs = {job.id: job for job in sacct(accounted)}
    listed = {job.id: job for job in squeue(queued)}
    not_listed = [each for each in jobs if each not in listed and not jobs[each].finished]
    jobs |= {each: replace(jobs[each], state=FORGOTTEN) for each in forgotten(shell, not_listed)}
    for job in listed.values():
        # The queue is never late, accounting may be by seconds; only accounting has exit codes.
        if job.id not in jobs or not job.finished:
            jobs[job.id] = job
    return tuple(sorted(jobs.values(), key=lambda job: int(job.id.split("_")[0])))


FORGOTTEN = "FORGOTTEN"
"""State of a job that accounting has as one to come or to end, and slurmctld does not know."""
FORGOTTEN_MEANS = (
    "slurmctld has forgotten it, so it neither runs nor starts; accounting has no end of it: where "
    "none comes, an administrator ends it there with sacctmgr show runawayjobs"
)


def forgotten(shell: Shell, ids: Sequence[str]) -> list[str]:
    """Those of these jobs, open in accounting, that slurmctld lists nowhere; it is asked last."""
    if not ids:
        return []
    result = shell.run(f"{_PRIVATE}; squeue --all --noheader --states=all --format=%A")
    hides_some = not result.ok or "PrivateData" in result.stderr  # which may run
    listed = result.stdout.split()
    return [] if hides_some else [each for each in ids if each.partition("_")[0] not in listed]


def cancel(shell: Shell, ids: Sequence[str]) -> None:
    """Ends these jobs, running or not."""
    asked(shell, "scancel", shlex.join(["scancel", *(job_id(each) for each in ids)]))


def has_open_tasks(shell: Shell, wanted: str) -> bool:
    """Whether a task of the array with this id runs or waits; one that is over may have its id."""
    result = shell.run(f"squeue --noheader --jobs={job_id(wanted)} --format=%T")
    if not result.ok and _GONE not in result.stderr:
        raise refused("squeue", result)
    return not ACTIVE_STATES.isdisjoint(result.stdout.split())


def id_of(shell: Shell, name: str) -> str | None:
    """Id of the user's one job with this name that runs or waits; None: there is none."""
    command = f"squeue --me --noheader --name={shlex.quote(name)} --format=%A"
    found = asked(shell, "squeue", command).split()
    return job_id(found[0]) if found else None


def release(shell: Shell, wanted: str) -> None:
    """Lets a job go that was submitted with `hold`."""
    asked(shell, "scontrol release", shlex.join(["scontrol", "release", job_id(wanted)]))


def job_id(text: str) -> str:
    """A job id in its own form; anything else is refused before it reaches a shell."""
    if not text.isascii() or not text.isdecimal():
        raise JobsError(
            f"{text!r} is not a job id (a number such as 12); `soperator status -s STACK` lists "
            "them"
        )
    return text


def asked(shell: Shell, what: str, command: str) -> str:
    """What the command printed; JobsError where it did not work. `what`: how that names it."""
    result = shell.run(command)
    if not result.ok:
        raise refused(what, result)
    return result.stdout


def refused(what: str, result: Result) -> JobsError:
    """The error for a Slurm command that did not work, with its own last words."""
    return JobsError(f"{what}: exit {result.exit_code}: {last_words(result.stderr)}")


def _sacct(number: str | None = None) -> str:
    jobs = f"--jobs={number} " if number else ""
    return f"{jobs}--noheader --parsable2 --allocations --format={SACCT_FIELDS}"


SQUEUE_FORMAT = "%A|%j|%T|%M|%V|%S|%E|%R"
"""Job id, name, state, time used, submit time, start time, what it waits for, nodes or reason.

The id is a number for a task of an array too, as in sacct's JobIDRaw, logs and results.
"""
SACCT_FIELDS = "JobIDRaw,JobName,State,ExitCode,Elapsed,Submit,Start,End,NodeList"

# States in which a job may still run. Everything else is an end, what a later Slurm adds too:
# taking an unknown state for an end stops a wait, taking it for life waits for ever.
ACTIVE_STATES = frozenset({
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING",
    "STAGE_OUT", "RESIZING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD",
    "SPECIAL_EXIT", "POWER_UP_NODE", "EXPEDITING"
})  # fmt: skip
_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")
_ABSENT = frozenset({"", "N/A", "n/a", "Unknown", "None", "(null)", "None assigned"})


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
    restarts: int = 0  # known of a job that was looked at alone, too

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
    found = re.fullmatch(r"([0-9]{1,18})(;\S+)?", lines[-1].strip()) if lines else None
    if found is None:
        raise JobsError(
            f"sbatch printed {output!r} instead of a job id; look with `soperator status -s STACK`"
        )
    return found.group(1)


def rows_of(output: str, who: str, form: str, *, name: int) -> Iterator[list[str]]:
    """The fields of each line; the one with the number `name` alone may hold the separator."""
    num_fields = len(re.split("[|,]", form))
    for line in filter(str.strip, output.splitlines()):
        *first, rest = line.split("|", name)
        fields = [*first, *rest.rsplit("|", num_fields - name - 1)]
        if len(fields) != num_fields:
            raise JobsError(f"{who} printed {line!r}, which is not {form!r}")
        yield fields


def squeue(output: str) -> tuple[Job, ...]:
    """Jobs of `squeue --noheader --format=SQUEUE_FORMAT`."""
    jobs = []
    for fields in rows_of(output, "squeue", SQUEUE_FORMAT, name=1):
        job_id, name, state, *times, needs, where = fields
        # Of a job that ended without success Slurm may print how, in parentheses.
        is_reason = where.startswith("(") and state not in ACTIVE_STATES
        place = None if is_reason else _present(where.strip("()"))
        jobs.append(_job(_id(job_id), name, state, times, where=place, needs=_needs(needs)))
    return tuple(jobs)


def sacct(output: str) -> tuple[Job, ...]:
    """Jobs of `sacct --noheader --parsable2 --allocations --format=SACCT_FIELDS`."""
    jobs = []
    for fields in rows_of(output, "sacct", SACCT_FIELDS, name=1):
        number, name, said, code, *times, where = fields
        number, state = _id(number), _state(said)
        status = None if state in ACTIVE_STATES else _accounted_exit_code(code)
        jobs.append(_job(number, name, state, times, where=_present(where), exit_code=status))
    return tuple(jobs)


def _job(job_id: str, name: str, state: str, times: Sequence[str], **more: Any) -> Job:
    """A job of a list, whose columns elapsed, submit, start and end, if any, follow each other."""
    columns = ("elapsed", "submitted", "started", "ended")
    told = dict(zip(columns, map(_present, times), strict=False))
    return Job(id=job_id, name=name, state=state, **told, **more)


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
            id=_id(fields["JobId"]),
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
            restarts=int((re.match(r"[0-9]{1,9}", fields.get("Restarts", "")) or "0")[0]),
        )
    except KeyError as error:
        raise JobsError(
            f"scontrol printed {output[:120]!r}, which has no {error.args[0]}"
        ) from error


def _id(text: str) -> str:
    """An id as printed, which names folders here: nothing else may."""
    if not _ID.fullmatch(text.strip()):
        raise JobsError(f"Slurm printed {text[:40]!r} for the id of a job")
    return text.strip()


def exit_code(text: str) -> int:
    """`code:signal` of Slurm as a shell would say it: the code, or 128 + signal."""
    found = re.fullmatch(r"([0-9]{1,9}):([0-9]{1,9})", text)
    if found is None:
        raise JobsError(f"Slurm printed the exit code {text!r}, which is not code:signal")
    code, signal = int(found.group(1)), int(found.group(2))
    return 128 + signal if signal else code


def _accounted_exit_code(text: str) -> int:
    """The same of sacct, which takes 128 off a code over it (src/sacct/print.c): 137 is `9:0`."""
    code = exit_code(text)
    # Signals of a fault or from outside; hardly a program ends with one of these as its own code.
    return 128 + code if code in (4, 6, 7, 8, 9, 11, 15) else code


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


_SACCT_USE = (
    "JobIDRaw,JobID,JobName,User,Account,Partition,State,Start,End,DerivedExitCode,AllocCPUS,"
    "AllocTRES,Timelimit,NodeList"
)
_QUEUE_USE = "%A|%i|%u|%a|%P|%T|%S|%e|%C|%b|%N|%D|%l|%r|%j"
_HELD = "JobHeldUser", "PENDING"
# slurmctld hides jobs from squeue, slurmdbd hides them from sacct.
_PRIVATE = "{ scontrol show config; sacctmgr show config; } 2>&1 | grep '^PrivateData .*jobs' >&2"
_SEPARATOR = "--"
_TASK = re.compile(r"(\d+)_(?:(\d+)|\[([^\]%]*)(?:%\d+)?\])")
"""`12_3`, or `12_[0-3,5%2]` of tasks that did not start."""
_OFF = "accounting storage is disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounted:
    """Jobs of one cluster by id, and whether their history is kept there."""

    uses: tuple[JobUse, ...]
    queue: tuple[JobUse, ...] = ()
    """Jobs that run or wait, and such as ended minutes ago; also those that are in no period."""
    has_accounting: bool
    is_private: bool = False
    """Whether Slurm shows its users their own jobs alone."""

    @property
    def queued(self) -> tuple[JobUse, ...]:
        """Jobs that run or wait now."""
        return tuple(each for each in self.queue if not each.is_finished)


def uses(
    shell: Shell,
    cluster: str,
    *,
    since: datetime,
    until: datetime,
    ids: Sequence[str] = (),
    mine: bool = False,
    account: str | None = None,
) -> Accounted:
    """Jobs that Slurm knows from the period, and those of `ids` whenever they were; one round trip.

    `mine`: those of the user that the shell is of; else those of the account, whoever submitted
    them, or all. Jobs that never became eligible are in no period, so open forecasts are asked for
    by id.
    """
    whose = '--user="$(id -un)"' if mine else "--allusers"
    if account is not None and not mine:
        whose += f" --accounts={shlex.quote(account)}"
    command = f"sacct {whose} --duplicates --noheader --parsable2 --format={_SACCT_USE}"
    period = f"--starttime={_slurm_time(since)} --endtime={_slurm_time(until)}"
    # With their steps come those alone that were queued again: Slurm reads steps job by job.
    asked = [f"{command} --allocations {period}", f"{command} --state=REQUEUED {period}"]
    if ids:
        asked.append(f"{command} --jobs={','.join(job_id(each) for each in ids)}")
    private = "" if mine else f" {_PRIVATE};"
    result = shell.run(
        f"export TZ=UTC0 SLURM_BITSTR_LEN=0;{private} {_squeue_use(mine, account)} && "
        f"echo {_SEPARATOR} && {' && '.join(asked)}"
    )
    queued, separator, accounted = result.stdout.rpartition(f"{_SEPARATOR}\n")
    has_accounting = _OFF not in result.stderr
    if not separator:
        raise refused("squeue", result)
    if not result.ok and has_accounting:
        raise refused("sacct", result)
    in_queue = squeue_rows(queued, cluster)
    rows = sacct_rows(accounted, cluster) if has_accounting else in_queue
    # Accounting may be late by seconds; the queue knows best what is not over.
    active = {row.job_id for row in in_queue if not row.is_finished}
    found = _joined(rows, active)
    runs = {use.job_id: use.runs for use in found}
    return Accounted(
        uses=found,
        # Accounting knows the earlier runs of a job that was queued again.
        queue=tuple(
            replace(use, runs=max(use.runs, runs.get(use.job_id, ()), key=len))
            for use in _joined(in_queue, active)
        ),
        has_accounting=has_accounting,
        is_private="PrivateData" in result.stderr,
    )


def queue(
    shell: Shell, cluster: str, *, mine: bool = False, account: str | None = None
) -> tuple[JobUse, ...]:
    """`Accounted.queue` alone, for which nobody asks the accounting."""
    command = f"export TZ=UTC0 SLURM_BITSTR_LEN=0; {_squeue_use(mine, account)}"
    rows = squeue_rows(asked(shell, "squeue", command), cluster)
    return _joined(rows, {row.job_id for row in rows if not row.is_finished})


def _squeue_use(mine: bool, account: str | None) -> str:
    me = "--me " if mine else "" if account is None else f"--account={shlex.quote(account)} "
    # --all: also jobs in partitions that are hidden from others.
    return f"squeue {me}--all --noheader --states=all --format={shlex.quote(_QUEUE_USE)}"


def sacct_rows(output: str, cluster: str) -> tuple[JobUse, ...]:
    """Each stretch of a job's life, which has several under one id where it was queued again.

    Its steps follow it where they were asked for: before a job's own requeue all have ended, and
    what a hand queues again has one that ends later. Without steps the worst one's code tells.
    """
    rows: dict[tuple[str, tuple[datetime, ...]], JobUse] = {}
    ends: list[str] = []
    for fields in reversed([*rows_of(output, "sacct", _SACCT_USE, name=2)]):
        *texts, worst_step, cpus, tres, limit, nodes = fields
        if "." in texts[0]:
            ends += texts[-1:] if texts[0].rpartition(".")[2].isdecimal() else []  # not `1.batch`
            continue
        found = re.search(r"(?:^|,)gres/gpu=(\d+)", tres)
        row = _row(cluster, texts, nodes, cpus)
        # `Unknown`, the end of a step that goes on, is after each time as text too.
        is_last = max(ends) <= texts[-1] if ends else worst_step != "0:0"
        by_hand, ends = row.state == "REQUEUED" and not is_last, []
        row = replace(
            row,
            gpus_per_node=count(found.group(1)) // max(1, len(expand(nodes))) if found else 0,
            limit_s=slurm_seconds(limit),
            runs=tuple(replace(run, state=BY_HAND) if by_hand else run for run in row.runs),
        )
        rows.setdefault((row.job_id, tuple(run.started_at for run in row.runs)), row)
    return tuple(rows.values())


def squeue_rows(output: str, cluster: str) -> tuple[JobUse, ...]:
    """Rows of `squeue --noheader --states=all --format=_QUEUE_USE`."""
    rows: list[JobUse] = []
    for fields in rows_of(output, "squeue", _QUEUE_USE, name=14):
        job_id, task, *texts, cpus, gres, nodes, num_nodes, limit, reason, name = fields
        found = re.search(r"\bgpu(?::[^:,=]+)?[:=](\d+)", gres)
        row = _row(cluster, [job_id, task, name, *texts], nodes, cpus, count(num_nodes))
        num_gpus, is_held = count(found[1]) if found else 0, (reason, row.state) == _HELD
        limit_s = slurm_seconds(limit)
        rows.append(replace(row, gpus_per_node=num_gpus, limit_s=limit_s, is_held=is_held))
    return tuple(rows)


def _row(cluster: str, texts: Sequence[str], nodes: str, cpus: str, num_nodes: int = 0) -> JobUse:
    """A row without its GPUs; `texts`: both ids, name, user, account, partition, state, times."""
    job_id, task, name, user, account, partition, state, start, end = texts
    on, word, began = expand(nodes), _state(state), _time(start)
    # The queue shows when a running job would end at the latest.
    ended = None if word in ACTIVE_STATES - {"REQUEUED"} else _time(end)
    runs = [Occupancy(started_at=began, ended_at=ended, nodes=on, state=word)] if began else []
    array_id, num_tasks = _array(task)
    return JobUse(
        cluster=cluster,
        job_id=_id(job_id),
        job=name,
        user=user,
        account="" if account == "(null)" else account,
        partition=partition,
        state=word,
        is_finished=word not in ACTIVE_STATES,
        runs=tuple(runs if on else ()),
        cpus_per_node=count(cpus) // max(1, len(on), num_nodes),
        array_id=array_id,
        num_tasks=num_tasks,
        num_nodes=num_nodes,
    )


def count(text: str, who: str = "Slurm") -> int:
    """A number that `who` printed; 0 of nothing. A line that a ~/.bashrc prints is none."""
    if not re.fullmatch(r"[0-9]{0,18}", text):
        raise JobsError(f"{who} printed {text[:40]!r} for a number")
    return int(text or 0)


def _array(task: str) -> tuple[str | None, int]:
    """The array that the job is of, and how many of its tasks; (None, 1) of any other job."""
    found = _TASK.match(task.strip())
    if found is None:
        return None, 1
    texts = [re.split("[-:]", each) for each in (found[3] or "").split(",") if each]
    ranges = [[count(number) for number in each] for each in texts]  # first, last, step
    sizes = (len(range(each[0], each[:2][-1] + 1, max(1, *each[2:], 1))) for each in ranges)
    return found[1], max(1, sum(sizes))


def _joined(rows: Iterable[JobUse], active: set[str]) -> tuple[JobUse, ...]:
    """One job for each id; what it is now is what its last row says."""
    by_id: dict[str, list[JobUse]] = {}
    for row in rows:
        by_id.setdefault(row.job_id, []).append(row)
    found = (_of_id(lives, is_active=job_id in active) for job_id, lives in by_id.items())
    return tuple(sorted(found, key=lambda use: (len(use.job_id), use.job_id)))


def _of_id(lives: Sequence[JobUse], *, is_active: bool) -> JobUse:
    """One job of all rows under its id; slurmctld may lose a job and give its id to the next one.

    What accounting leaves open of the lost one ends where the next begins, or at its time limit.
    """
    first, latest = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    unstarted = {True: latest, False: latest if is_active else first}
    starts = (row.runs[0].started_at if row.runs else unstarted[row.is_finished] for row in lives)
    rows = sorted(zip(starts, lives, strict=True), key=lambda each: each[0])
    runs: list[Occupancy] = []
    for (began, row), after in zip(rows, [*(start for start, _ in rows[1:]), latest], strict=True):
        end = row.end_at_most(began, after) if after < latest else None
        runs += [replace(run, ended_at=run.ended_at or end) for run in row.runs]
    return replace(
        rows[-1][1],
        is_finished=rows[-1][1].is_finished and not is_active,
        runs=tuple(runs),
        cpus_per_node=max(row.cpus_per_node for row in lives),
        gpus_per_node=max(row.gpus_per_node for row in lives),
    )


def _time(text: str) -> datetime | None:
    """A time of Slurm in UTC; None for `Unknown`, `None`, `N/A` and the like."""
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        return None


def _slurm_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")


def expand(text: str) -> tuple[str, ...]:
    """Every node name in the order of the text; none where no node was assigned."""
    try:
        return expand_nodes(_present(text) or "")
    except ValueError as error:
        raise JobsError(f"Slurm printed the nodes {error}") from error
