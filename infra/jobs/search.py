"""A hyperparameter search: one sbatch of an array, its trials' results, and their leaderboard.

Money is asked for before anything is queued. What a search costs is cost/runs/searches.py's, its
script infra/render/sbatch.py's.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from cost.runs.ledger import actuals
from cost.runs.searches import search_cost, search_line
from cost.runs.spend import spend
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import ACTIVE_STATES, FORGOTTEN, Shell, forgotten, refused, rows_of
from infra.jobs.history import IS_OWN, SubmittedJobs
from infra.jobs.ledger import JobLedger
from infra.jobs.recipes import PreparedJob, Request, prepare
from infra.render.sbatch import TRIAL_FILE, array_option
from stacks.spec.slurm import Goal, SearchSpec


def prepare_search(
    ledger: JobLedger,
    search: SearchSpec,
    code: Mapping[str, bytes],
    sets: Sequence[str] = (),
    numbers: Sequence[int] | None = None,
) -> Request:
    """The array of these trials, or of all; the ledger logs their cost. `sets`: of all trials.

    Every one that no memory holds is refused.
    """
    job = next(each for each in ledger.spec.jobs if each.name == search.job)
    wanted = tuple(range(len(search.settings)) if numbers is None else numbers)
    tasks: dict[int | None, PreparedJob] = {}
    problems: list[str] = []
    silent = replace(ledger, log=lambda _line: None)
    for number in wanted:
        own = [*sets, *search.settings[number]]
        try:
            tasks |= {number: prepare(silent, job, code, own).tasks[None]}
        except JobsError as error:
            problems.append(f"trial {number} ({' '.join(search.settings[number])}): {error}")
    if problems:
        raise JobsError("\n".join(problems))
    settings = [search.settings[number] for number in wanted]
    cost = replace(
        search_cost(search, ledger.rates, ledger.records, sets, settings),
        runs=tuple(each.run for each in tasks.values()),
    )
    ledger.log(search_line(cost))
    return Request(
        name=search.name,
        sets=tuple(sets),
        run=cost.run,
        tasks=tasks,
        array=array_option(search, wanted),
        search=cost,
    )


def trials_to_submit(
    search: SearchSpec, submitted: SubmittedJobs, sets: Sequence[str]
) -> tuple[int, ...]:
    """Trials that neither passed with this code and these settings nor wait or run."""
    arrays = {
        each.job_id
        for each in submitted.submissions()
        if (each.job, each.code_hash, each.sets) == (search.name, submitted.code_hash, tuple(sets))
    }
    if not arrays:
        return tuple(range(len(search.settings)))
    passed = {
        run.settings
        for run in runs_of(submitted.connection, submitted.outputs, search.name)
        if run.array_id in arrays and run.record and run.record.get("outcome") == "PASS"
    }
    active = {
        task.number
        for task in states_of(submitted.connection, search.name)
        if task.array_id in arrays and task.is_active
    }
    return tuple(
        number
        for number, settings in enumerate(search.settings)
        if settings not in passed and number not in active
    )


_RECORD: Final = "run_record.json"
# One line a file, whatever its layout: JSON text holds no line end of its own.
_FILES: Final = r"""{is_own}
for results in {results}; do
cd "$results" 2>/dev/null || continue
for file in */{trial}; do
  is_own "$results/${{file%%/*}}" && [ -f "$file" ] && grep -qF {wanted} "$file" || continue
  job=${{file%%/*}}
  printf '%s\n' "$job"
  tr -d '\r\n' < "$file"; echo
  if [ -f "$job/{record}" ]; then tr -d '\r\n' < "$job/{record}"; fi; echo
done
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


@dataclass(frozen=True, slots=True)
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
        is_own=IS_OWN,
        results=shlex.join({each.places["results"]: "" for each in (outputs.before, outputs)}),
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
    # The state's first word is its name, as of `CANCELLED by 0`; waiting tasks are those of the
    # queue, which is never late.
    known = re.findall(r"^(\d+)\|(\d+)_(\d{1,9})\|(\S*)", accounted, re.MULTILINE)
    tasks = {
        each[0]: TaskState(each[0], each[1], int(each[2]), each[3])
        for each in known
        if each[3] != "PENDING"
    }
    rows = [[*map(str.strip, each)] for each in rows_of(queued, "squeue", _QUEUE, name=3)]
    in_queue = [
        TaskState(job_id, array_id, int(number), state)
        for job_id, array_id, number, state in rows
        if number.isdecimal()
    ]
    listed = {task.job_id for task in in_queue}
    not_listed = [each for each in tasks if each not in listed and tasks[each].is_active]
    tasks |= {each: replace(tasks[each], state=FORGOTTEN) for each in forgotten(shell, not_listed)}
    # Waiting tasks share the id of the array until they start: they are told apart by number.
    waiting: list[TaskState] = []
    for task in in_queue:
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
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


NOT_SUBMITTED = "NOT SUBMITTED"
NO_METRIC = "NO METRIC"
_LOOK_BACK = timedelta(days=31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One declared trial."""

    rank: int | None
    """From 1; None without a result."""
    number: int
    settings: tuple[str, ...]
    job_id: str | None
    state: str
    """PASS, or why it is not ranked."""
    value: float | None
    """The metric."""
    usd: Decimal | None
    """US dollars of its nodes; None while that is not known."""
    reason: str | None
    """What the record says of a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The trials of one search, the best first, those without a result last."""

    search: SearchSpec
    rows: tuple[Row, ...]
    num_former: int
    """Tasks whose settings are no longer declared."""
    former_usd: Decimal

    @property
    def best(self) -> Row | None:
        """The winner so far."""
        return next((row for row in self.rows if row.rank == 1), None)

    @property
    def usd(self) -> Decimal:
        """US dollars of every task whose price is known."""
        return self.former_usd + sum((row.usd or Decimal(0) for row in self.rows), Decimal(0))


def leaderboard(
    search: SearchSpec,
    runs: Sequence[TrialRun],
    states: Sequence[TaskState],
    usd: Mapping[str, Decimal | None],
) -> Board:
    """The newest run of each declared trial; `usd` by job id."""
    newest = {tuple(run.settings): run for run in sorted(runs, key=lambda run: int(run.job_id))}
    by_id = {task.job_id: task.state for task in states if task.state != "PENDING"}
    waiting = {task.number for task in states if task.state == "PENDING"}

    def row_of(number: int, settings: tuple[str, ...]) -> Row:
        run = newest.get(settings)
        value, reason = None, None
        if run is None:
            state = "PENDING" if number in waiting else NOT_SUBMITTED
        elif run.record is None:
            state = by_id.get(run.job_id, "ENDED WITHOUT A RECORD")
        else:
            state, told = str(run.record.get("outcome")), run.record.get("reason")
            reason = None if told is None else str(told)
            if state == "PASS":
                value = _metric(run.record, search.metric)
                state = state if value is not None else NO_METRIC
        return Row(
            rank=None,
            number=number,
            settings=settings,
            job_id=None if run is None else run.job_id,
            state=state,
            value=value,
            usd=None if run is None else usd.get(run.job_id),
            reason=reason,
        )

    rows = [row_of(*each) for each in enumerate(search.settings)]
    sign = 1 if search.goal is Goal.LOWEST else -1
    ranked = sorted(
        (row for row in rows if row.value is not None),
        key=lambda row: (sign * (row.value or 0.0), row.number),
    )
    places = {row.number: place for place, row in enumerate(ranked, 1)}
    others = [row for row in rows if row.value is None]
    declared = set(search.settings)
    # Of settings that are no longer declared, and runs that a newer one replaced.
    former = [
        run for run in runs if run.settings not in declared or newest[run.settings] is not run
    ]
    return Board(
        search=search,
        rows=tuple(replace(row, rank=places.get(row.number)) for row in (*ranked, *others)),
        num_former=sum(run.settings not in declared for run in runs),
        former_usd=sum((usd.get(run.job_id) or Decimal(0) for run in former), Decimal(0)),
    )


def usd_by_job(
    ledger: JobLedger, shell: Shell, cluster: str, ids: Sequence[str], *, now: datetime
) -> dict[str, Decimal | None]:
    """US dollars of these jobs' nodes up to now, by id; ended ones are settled on the way."""
    since = now - _LOOK_BACK
    with ledger.locked(shell, cluster) as books:
        known = books.settle(since=since, now=now, ids=ids).uses
        ended = actuals(books.file.read().entries)
    starts = [run.started_at for use in known for run in use.runs]
    total = spend(ledger.rates, known, since=min([since, *starts]), until=now)
    found = {key[1]: entry.nodes_usd for key, entry in ended.items() if key[0] == cluster}
    found |= {job.use.job_id: job.nodes_usd for job in total.jobs if job.use.runs}
    return {each: found[each] for each in ids if each in found}


def _metric(record: Mapping[str, object], name: str) -> float | None:
    metrics = record.get("metrics")
    value = metrics.get(name) if isinstance(metrics, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A whole number of JSON may be more than a float holds, and isfinite() refuses such a one.
    return float(value) if -sys.float_info.max <= value <= sys.float_info.max else None
