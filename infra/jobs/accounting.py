"""Which nodes jobs held and when, from sacct, or from the queue alone where accounting is off.

Owns one command line and its parsing. Times are asked for in UTC, whatever the cluster's zone is.
Fixtures of the tests are real output of Slurm 22.05.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from cost.ledger_entries import Occupancy
from cost.spend import JobUse
from infra.jobs import slurm
from infra.jobs.errors import JobsError
from infra.jobs.hostlist import expand
from infra.jobs.parse import ACTIVE_STATES
from infra.jobs.slurm import Shell, refused

SACCT_FIELDS = "JobIDRaw,JobID,JobName,User,Partition,State,Start,End,AllocCPUS,AllocTRES,NodeList"
SQUEUE_FORMAT = "%A|%i|%u|%P|%T|%S|%e|%C|%b|%N|%j"
_SEPARATOR = "--"
_TASK = re.compile(r"(\d+)_(?:(\d+)|\[([^\]%]*)(?:%\d+)?\])")
"""`12_3`, or `12_[0-3,5%2]` of tasks that did not start."""
_OFF = "accounting storage is disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounted:
    """Jobs of one cluster by id, and whether their history is kept there."""

    uses: tuple[JobUse, ...]
    queued: tuple[JobUse, ...] = ()
    """Jobs that run or wait now, also those that were never eligible and are in no period."""
    has_accounting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One stretch of one job's life; a requeued job has several under one id."""

    job_id: str
    name: str
    user: str
    partition: str
    state: str
    started_at: datetime | None
    ended_at: datetime | None
    nodes: tuple[str, ...]
    cpus_per_node: int
    gpus_per_node: int
    array_id: str | None
    num_tasks: int


def uses(
    shell: Shell, cluster: str, *, since: datetime, until: datetime, ids: Sequence[str] = ()
) -> Accounted:
    """Jobs that Slurm knows from the period, and those of `ids` whenever they were; one round trip.

    Jobs that never became eligible are in no period, so open forecasts are asked for by id.
    """
    command = (
        "sacct --allusers --duplicates --noheader --parsable2 --allocations "
        f"--format={SACCT_FIELDS}"
    )
    asked = [f"{command} --starttime={_slurm_time(since)} --endtime={_slurm_time(until)}"]
    if ids:
        asked.append(f"{command} --jobs={','.join(slurm.job_id(each) for each in ids)}")
    # --all: also jobs in partitions that are hidden from others.
    queue = f"squeue --all --noheader --states=all --format={shlex.quote(SQUEUE_FORMAT)}"
    result = shell.run(
        f"export TZ=UTC0 SLURM_BITSTR_LEN=0; {queue} && echo {_SEPARATOR} && {' && '.join(asked)}"
    )
    queued, separator, accounted = result.stdout.rpartition(f"{_SEPARATOR}\n")
    has_accounting = _OFF not in result.stderr
    if not separator:
        raise refused("squeue", result)
    if not result.ok and has_accounting:
        raise refused("sacct", result)
    in_queue = squeue_rows(queued)
    rows = sacct_rows(accounted) if has_accounting else in_queue
    # Accounting may be late by seconds; the queue knows best what is not over.
    queued_rows = [row for row in in_queue if row.state in ACTIVE_STATES]
    active = {row.job_id for row in queued_rows}
    return Accounted(
        uses=_joined(rows, active, cluster),
        queued=_joined(queued_rows, active, cluster),
        has_accounting=has_accounting,
    )


def sacct_rows(output: str) -> tuple[_Row, ...]:
    """Rows of `sacct --noheader --parsable2 --allocations --format=SACCT_FIELDS`, each once."""
    rows: dict[tuple[str, datetime | None], _Row] = {}
    for line in output.splitlines():
        if not line.strip():
            continue
        job_id, _, rest = line.partition("|")
        task, _, rest = rest.partition("|")
        fields = rest.rsplit("|", 8)
        if len(fields) != 9:
            raise JobsError(f"sacct printed {line!r}, which is not {SACCT_FIELDS!r}")
        name, user, partition, state, start, end, cpus, tres, nodes = fields
        row = _row(job_id, task, name, user, partition, state, start, end, nodes)
        found = re.search(r"(?:^|,)gres/gpu=(\d+)", tres)
        gpus = int(found.group(1)) if found else 0
        rows[row.job_id, row.started_at] = _with_parts(row, int(cpus or 0), gpus)
    return tuple(rows.values())


def squeue_rows(output: str) -> tuple[_Row, ...]:
    """Rows of `squeue --noheader --states=all --format=SQUEUE_FORMAT`."""
    rows: list[_Row] = []
    for line in output.splitlines():
        if not line.strip():
            continue
        fields = line.split("|", 10)
        if len(fields) != 11:
            raise JobsError(f"squeue printed {line!r}, which is not {SQUEUE_FORMAT!r}")
        job_id, task, user, partition, state, start, end, cpus, gres, nodes, name = fields
        row = _row(job_id, task, name, user, partition, state, start, end, nodes)
        found = re.search(r"\bgpu(?::[^:,=]+)?[:=](\d+)", gres)
        gpus = int(found.group(1)) if found else 0
        rows.append(_with_parts(row, int(cpus or 0), gpus * len(row.nodes)))
    return tuple(rows)


def _row(
    job_id: str,
    task: str,
    name: str,
    user: str,
    partition: str,
    state: str,
    start: str,
    end: str,
    nodes: str,
) -> _Row:
    # sacct prints `CANCELLED by 0`.
    word = state.split()[0] if state.split() else state
    array_id, num_tasks = _array(task)
    return _Row(
        job_id=job_id.strip(),
        name=name,
        user=user,
        partition=partition,
        state=word,
        started_at=_time(start),
        # The queue shows when a running job would end at the latest.
        ended_at=None if word in ACTIVE_STATES - {"REQUEUED"} else _time(end),
        nodes=expand(nodes),
        cpus_per_node=0,
        gpus_per_node=0,
        array_id=array_id,
        num_tasks=num_tasks,
    )


def _array(task: str) -> tuple[str | None, int]:
    """The array that the job is of, and how many of its tasks; (None, 1) of any other job."""
    found = _TASK.match(task.strip())
    if found is None:
        return None, 1
    number = 1
    if found[3] is not None:
        ranges = [re.split("[-:]", each) for each in found[3].split(",") if each]
        number = sum(
            len(range(int(each[0]), int(each[1]) + 1, int(each[2]) if len(each) > 2 else 1))
            if len(each) > 1
            else 1
            for each in ranges
        )
    return found[1], max(1, number)


def _with_parts(row: _Row, cpus: int, gpus: int) -> _Row:
    num_nodes = max(1, len(row.nodes))
    return replace(row, cpus_per_node=cpus // num_nodes, gpus_per_node=gpus // num_nodes)


def _joined(rows: Iterable[_Row], active: set[str], cluster: str) -> tuple[JobUse, ...]:
    """One job for each id; what it is now is what its last row says."""
    by_id: dict[str, list[_Row]] = {}
    for row in rows:
        by_id.setdefault(row.job_id, []).append(row)
    latest = datetime.max.replace(tzinfo=UTC)
    found: list[JobUse] = []
    for job_id, lives in by_id.items():
        lives.sort(key=lambda row: row.started_at or latest)
        last = lives[-1]
        found.append(
            JobUse(
                cluster=cluster,
                job_id=job_id,
                name=last.name,
                user=last.user,
                partition=last.partition,
                state=last.state,
                is_finished=last.state not in ACTIVE_STATES and job_id not in active,
                runs=tuple(
                    Occupancy(started_at=row.started_at, ended_at=row.ended_at, nodes=row.nodes)
                    for row in lives
                    if row.started_at is not None and row.nodes
                ),
                cpus_per_node=max(row.cpus_per_node for row in lives),
                gpus_per_node=max(row.gpus_per_node for row in lives),
                array_id=last.array_id,
                num_tasks=last.num_tasks,
            )
        )
    return tuple(sorted(found, key=lambda use: (len(use.job_id), use.job_id)))


def _time(text: str) -> datetime | None:
    """A time of Slurm in UTC; None for `Unknown`, `None`, `N/A` and the like."""
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        return None


def _slurm_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
