"""Submits a declared job or pipeline the one way there is, never lost and never twice.

Forecast, plan, budget, sbatch, history, ledger: `soperator submit` and the demo both come here, so
that no job escapes the budget or its plan. What is about to be sent is written down before sbatch;
put_back() finds the job by its mark after a killed run or a lost answer. Callers hold its lock.
    dispatch(order(books, job, files, sets, say=say), books, connection, outputs, ...)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from getpass import getuser
from pathlib import Path
from typing import Any, Final

from cost.runs.forecast import Forecast, UnknownRun
from cost.runs.ledger import (
    FILE_NAME,
    Entry,
    Ledger,
    LedgerError,
    LineError,
    VersionError,
    decode,
    encode,
)
from cost.runs.recipes import RecipeError, recipe_of
from cost.runs.runs import run_lines
from cost.size.plan import Plan
from cost.size.shape import SizeError
from infra import files
from infra.clients.errors import JobsError, NotSubmittedError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell, refused
from infra.jobs import history, ledger, submit
from infra.jobs import submit as marks
from infra.jobs.history import Earlier
from infra.jobs.ledger import Asking, Books, write_down
from infra.jobs.submit import (
    AlreadyQueuedError,
    Submission,
    new_mark,
    plan_lines,
    plan_of,
    prepared_data,
    refuse_unfit,
)
from stacks.schedule import why_ended
from stacks.spec.slurm import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One declared job as it is about to be submitted."""

    job: JobSpec
    sets: tuple[str, ...]
    run: Forecast | UnknownRun
    plan: Plan | None
    """None: the job does not train, or cannot be planned."""
    recipe: Mapping[str, Any]
    """With the settings in it; empty: it cannot be read here."""

    @property
    def config(self) -> bytes | None:
        """What the run is configured by; None: its recipe cannot be read here."""
        return submit.config_text(self.recipe) if self.recipe else None


def order(
    books: Books,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    *,
    say: Callable[[str], None],
) -> Order:
    """What the job is expected to take and the plan that it ships, both told; `files` is code.

    Refuses a job of a stack that has ended, and one that no memory holds, as its trainer would.
    """
    over = why_ended(books.spec, datetime.now(UTC))
    if over is not None:
        raise JobsError(f"{over}; nothing was submitted")
    recipe = _recipe(job, files, sets)
    run = books.forecast(job, sets)
    for line in run_lines(run):
        say(line)
    plan = None
    try:
        plan = plan_of(books.spec, job, files, sets, run)
    except (SizeError, RecipeError) as error:
        for line in str(error).splitlines():
            say(f"no plan: {line}")
    for line in plan_lines(plan) if plan is not None else ():
        say(line)
    if plan is not None:
        refuse_unfit(plan, recipe)
    return Order(job=job, sets=tuple(sets), run=run, plan=plan, recipe=recipe)


def dispatch(
    ordered: Order,
    books: Books,
    shell: Shell,
    outputs: StackOutputs,
    *,
    state: Path,
    code_hash: str,
    git_revision: str | None,
    say: Callable[[str], None],
    after: str | None = None,
    force: bool = False,
    store: Mapping[str, str] | None = None,
    nodes: Sequence[str] = (),
    once: bool = False,
    reproduces: str | None = None,
    queued: Callable[[str], None] = lambda _: None,
) -> Sent:
    """The submission, written down here and in the ledger; refused where the budget has no room.

    `store`: where run configs are kept; `nodes`: what it must run on; `once`: not beside a job of
    equal inputs that runs or waits, unless what it needs was submitted after that. `queued` gets
    the id of a new job right after sbatch.
    """
    mark = new_mark(ordered.job.name, code_hash, ordered.sets, reproduces=reproduces)
    once_from = None
    if once:
        earlier = Earlier(shell=shell, outputs=outputs, state=state, code_hash=code_hash, say=say)
        once_from = earlier.oldest(earlier.newest(ordered.job.after))
    planned = plan_submission(
        outputs, ordered.job.name, code_hash, ordered.sets, after, mark, reproduces=reproduces
    )

    def submit_now() -> Submission:
        kept = None
        if store is not None and ordered.config is not None:
            kept = submit.keep(store, ordered.job.recipe, ordered.config)
            say(f"config: {kept}")
        return submit.submit(
            shell,
            outputs,
            ordered.job.name,
            code_hash=code_hash,
            sets=ordered.sets,
            after=after,
            git_revision=git_revision,
            plan=ordered.plan and ordered.plan.to_bytes(),
            run_config=kept,
            nodes=nodes,
            reads=(prepared_data(ordered.job, ordered.recipe, outputs),),
            mark=mark,
            once_from=once_from,
        )

    asked = asking(ordered.run, outputs, force=force)
    return send(
        books, shell, outputs, asked, planned, submit_now, state=state, say=say, queued=queued
    )


def environment(
    ordered: Order,
    outputs: StackOutputs,
    *,
    code_hash: str,
    git_revision: str | None,
    store: Mapping[str, str] | None = None,
) -> list[str]:
    """Variables that `dispatch` submits the job with, NAME=VALUE each; nothing is stored."""
    return submit.environment(
        outputs, code_hash, git_revision=git_revision, own=task_files(ordered, store)
    )


def task_files(ordered: Order, store: Mapping[str, str] | None) -> submit.TaskFiles:
    """Plan and place of the config of one job as it will be submitted."""
    kept = None
    if store is not None and ordered.config is not None:
        kept = submit.address(store, ordered.job.recipe, ordered.config)
    return submit.TaskFiles(plan=ordered.plan and ordered.plan.to_bytes(), run_config=kept)


def asking(
    run: Forecast | UnknownRun, outputs: StackOutputs, *, force: bool = False
) -> ledger.Asking:
    """The run as it stands before the budget now, asked by the user of this process."""
    return ledger.Asking(
        run=run,
        cluster=outputs.login_host_key,
        now=datetime.now(UTC),
        user=_user(),
        force=force,
    )


def _recipe(job: JobSpec, files: Mapping[str, bytes], sets: Sequence[str]) -> dict[str, Any]:
    try:
        return recipe_of(job, files, sets)
    except RecipeError:
        return {}  # the job itself refuses it, with the key that is wrong


def _user() -> str:
    """Who asks, as this machine knows them; the number where it has no name for them."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One job that was asked for."""

    submission: Submission
    is_earlier: bool
    """Whether it had been submitted before."""


def plan_submission(
    outputs: StackOutputs,
    job: str,
    code_hash: str,
    sets: Sequence[str],
    after: str | None,
    mark: str,
    *,
    reproduces: str | None = None,
) -> Submission:
    """The submission as it is before it has a number."""
    return Submission(
        stack=outputs.stack,
        job=job,
        job_id="",
        code_hash=code_hash,
        sets=tuple(sets),
        after=after,
        log_path="",
        submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=outputs.login_host_key,
        reproduces=reproduces,
        mark=mark,
    )


def send(
    books: Books,
    shell: Shell,
    outputs: StackOutputs,
    asked: Asking,
    planned: Submission,
    submit: Callable[[], Submission],
    *,
    state: Path,
    say: Callable[[str], None],
    queued: Callable[[str], None] = lambda _: None,
) -> Sent:
    """What `submit` made of `planned`, in the history and in the ledger."""
    begun: list[Attempt] = []

    def write_attempt(entries: ledger.Entries) -> None:
        begun.append(Attempt(submission=planned, entries=entries))
        begin(state, begun[0])

    def numbered(job_id: str, mark: str | None = planned.mark) -> Submission:
        log_path = outputs.log_path(planned.job, job_id)
        return replace(planned, job_id=job_id, log_path=log_path, mark=mark)

    def submit_and_remember() -> Submission:
        try:
            number = submit().job_id
        except AlreadyQueuedError as same:
            say(f"{same}; it is taken")
            found = numbered(same.job_id, same.mark)
            history.remember(state, found, is_new=False)
            return found
        except NotSubmittedError:
            end(state, planned)
            raise
        except JobsError as error:
            number = _came_of(shell, outputs, begun[0], error, state)
            say(f"{planned.job}: job {number} came of it all the same ({error})")
        queued(number)
        made = numbered(number)
        history.remember(state, made)
        return made

    made = ledger.submit_within_budget(
        books, shell, asked, submit_and_remember, say=say, begin=write_attempt
    )
    end(state, planned)
    return Sent(submission=made, is_earlier=made.mark != planned.mark)


def _came_of(
    shell: Shell, outputs: StackOutputs, begun: Attempt, error: JobsError, state: Path
) -> str:
    """Number of the job that an sbatch without an answer made; raises `error` where it made none.

    Slurm may queue a job and let sbatch time out. Where nobody answers, the attempt stays.
    """
    known = [
        each.job_id
        for each in history.submissions(state, outputs.stack)
        if each.cluster == outputs.login_host_key
    ]
    try:
        number = find(shell, outputs, begun, known)
    except JobsError:
        raise error from None
    if number is None:
        end(state, begun.submission)
        raise error
    return number


_FOLDER: Final = ".attempts"
_QUEUE: Final = "%F|%k"
_SACCT: Final = "JobID,Submit,Comment"
_BEFORE: Final = timedelta(minutes=5)
_AFTER: Final = timedelta(minutes=10)
"""How far this machine's clock and the wait for sbatch may take the two moments apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A submission without its number, and what the ledger gets once it has one."""

    submission: Submission
    entries: tuple[Entry, ...]

    @property
    def mark(self) -> str:
        """The comment of its job."""
        assert self.submission.mark is not None
        return self.submission.mark


def begin(state: Path, attempt: Attempt) -> None:
    """Writes the attempt down, whole; sbatch comes after it."""
    path = _path(state, attempt.submission)
    values = {
        "submission": asdict(attempt.submission),
        "entries": [encode(entry) for entry in attempt.entries],
    }
    try:
        files.write(path, json.dumps(values))
    except OSError as error:
        raise JobsError(
            f"{path}: {error.strerror or error}; nothing was submitted: make room there, or set "
            "SOPERATOR_STATE"
        ) from error


def end(state: Path, submission: Submission) -> None:
    """Forgets the attempt: its job is written down, or there is none."""
    _path(state, submission).unlink(missing_ok=True)


def left(state: Path, stack: str) -> tuple[Attempt, ...]:
    """Attempts that nobody ended, oldest first; a damaged file never came as far as sbatch."""
    found = [_read(path) for path in (state / "runs" / stack / _FOLDER).glob("*.json")]
    known = [each for each in found if each is not None]
    return tuple(sorted(known, key=lambda each: each.submission.submitted_at))


def find(
    shell: Shell, outputs: StackOutputs, attempt: Attempt, known: Collection[str]
) -> str | None:
    """Id of the job that came of the attempt; None: none did. `known`: ids of other submissions.

    By its comment while the controller has the job or accounting keeps comments; else by name and
    time, where one job alone fits.
    """
    made = attempt.submission
    begun = datetime.fromisoformat(made.submitted_at)
    since = (begun - timedelta(days=1)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    # An sbatch whose sender is gone still holds the lock: what it makes is seen after it.
    result = shell.run(
        f"{marks.lock_script(outputs.own_path)}export TZ=UTC0; "
        f"squeue --all --noheader --states=all --format={shlex.quote(_QUEUE)} && echo -- && "
        f"sacct --allusers --noheader --parsable2 --allocations --name={shlex.quote(made.job)} "
        f"--format={_SACCT} --starttime={since}"
    )
    if result.exit_code == marks.BUSY_EXIT:
        raise JobsError(
            f"{made.job}: {marks.why_busy(result.stderr)}; whether a job came of the submission "
            "that was cut off is not known: try again"
        )
    # A whole line: a comment of somebody's job may end with the same.
    queued, separator, accounted = f"\n{result.stdout}".partition("\n--\n")
    if not separator or (not result.ok and "accounting storage" not in result.stderr):
        raise refused("squeue", result)
    in_queue = [line.partition("|") for line in queued.split("\n") if line]
    rows = [fields for line in accounted.splitlines() if len(fields := line.split("|", 2)) == 3]
    for job_id, comment in [(each[0], each[2]) for each in in_queue] + [
        (row[0], row[2]) for row in rows
    ]:
        if comment.strip() == attempt.mark:
            return _number(job_id)
    # The controller knows the comments of its jobs, so none of those is it.
    others = {_number(each[0]) for each in in_queue} | set(known)
    return _by_time(rows, begun, others)


def _by_time(rows: Sequence[Sequence[str]], begun: datetime, others: Collection[str]) -> str | None:
    fits = {
        number
        for job_id, submitted, comment in rows
        if not comment.strip()
        and (number := _number(job_id)) not in others
        and (at := _time(submitted)) is not None
        and begun - _BEFORE <= at <= begun + _AFTER
    }
    return fits.pop() if len(fits) == 1 else None


def _number(job_id: str) -> str:
    """`12` of `12`, `12_3` and `12_[1-3]`: what sbatch said."""
    return re.sub(r"\D.*", "", job_id.strip())


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        return None


def _read(path: Path) -> Attempt | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        submission = values["submission"]
        found = Attempt(
            submission=Submission(**{**submission, "sets": tuple(submission["sets"])}),
            entries=tuple(decode(line) for line in values["entries"]),
        )
        datetime.fromisoformat(found.submission.submitted_at)
    except (OSError, ValueError, TypeError, KeyError, LineError, VersionError, RecursionError):
        return None
    return found if isinstance(found.submission.mark, str) else None


def _path(state: Path, submission: Submission) -> Path:
    nonce = (submission.mark or "").rpartition(":")[2]
    return state / "runs" / submission.stack / _FOLDER / f"{nonce}.json"


_LOCK: Final = ".submit.lock"


@contextmanager
def alone(
    state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]
) -> Generator[None]:
    """No other process of this state folder submits to the stack in the block."""
    descriptor = _open(state, outputs.stack)
    try:
        if not _taken(descriptor, state, outputs.stack, wait=False):
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            say(
                f"another submission to {outputs.stack} is on its way from here (process {other}); "
                "waiting for it"
            )
            _taken(descriptor, state, outputs.stack, wait=True)
        with contextlib.suppress(OSError):  # a full disk: only who waits would read it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        for path in history.damaged(state, outputs.stack):
            say(f"{path}: damaged, so its job may be submitted once more; remove it")
        _put_back(state, shell, outputs, say)
        yield
    finally:
        os.close(descriptor)


def put_back(state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]) -> None:
    """Puts back what a killed submission left, unless one is on its way or nothing can be told.

    For every command that enters the cluster; one that submits must know, and uses `alone`.
    """
    if not left(state, outputs.stack):
        return
    with contextlib.suppress(JobsError, LedgerError):
        descriptor = _open(state, outputs.stack)
        try:
            if _taken(descriptor, state, outputs.stack, wait=False):
                _put_back(state, shell, outputs, say)
        finally:
            os.close(descriptor)


def _put_back(state: Path, shell: Shell, outputs: StackOutputs, say: Callable[[str], None]) -> None:
    ledger = Ledger(state / "runs" / outputs.stack / FILE_NAME)
    for begun in left(state, outputs.stack):
        # Ids start again on a cluster that was made anew, and its jobs are gone.
        if begun.submission.cluster == outputs.login_host_key:
            made = _made(state, shell, outputs, begun)
            if made is not None:
                with ledger.locked() as opened:
                    write_down(opened, begun.entries, made.job_id)
                say(
                    f"{made.job}: job {made.job_id} was submitted by a command that was cut off; "
                    "it is written down"
                )
        end(state, begun.submission)


def _made(state: Path, shell: Shell, outputs: StackOutputs, begun: Attempt) -> Submission | None:
    """What came of the attempt, in the history; None: nothing did."""
    here = [
        each
        for each in history.submissions(state, outputs.stack)
        if each.cluster == outputs.login_host_key
    ]
    for each in here:
        if each.mark == begun.mark:
            return each
    number = find(shell, outputs, begun, [each.job_id for each in here])
    if number is None:
        return None
    job = begun.submission.job
    made = replace(begun.submission, job_id=number, log_path=outputs.log_path(job, number))
    history.remember(state, made, is_new=False)
    return made


def _open(state: Path, stack: str) -> int:
    path = _lock_path(state, stack)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise JobsError(
            f"{path}: {error.strerror or error}; nothing was submitted: make its folder yours, or "
            "set SOPERATOR_STATE"
        ) from error


def _taken(descriptor: int, state: Path, stack: str, *, wait: bool) -> bool:
    """Whether the lock is ours; False only without `wait`, where another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise JobsError(
            f"{_lock_path(state, stack)}: {error.strerror or error}; nothing was submitted: set "
            "SOPERATOR_STATE to a folder on a filesystem that has locks"
        ) from error
    return True


def _lock_path(state: Path, stack: str) -> Path:
    return state / "runs" / stack / _LOCK


Send = Callable[[JobSpec, str | None], Sent]
"""Submits one job after these ids, as Slurm takes them."""


Counted = Mapping[str, Submission | None]
"""Job -> what was submitted before and counts; None: it is left to submit."""


def counted(
    jobs: Sequence[JobSpec],
    sets: Mapping[str, Sequence[str]],
    earlier: Earlier,
    *,
    again: bool = False,
) -> Counted:
    """What counts of an earlier submission; nothing after a job that is left, or asked `again`."""
    found: dict[str, Submission | None] = {}
    for job in jobs:
        needed = [found[name] for name in job.after if name in found]
        known = [each for each in needed if each is not None]
        found[job.name] = None
        if not again and len(known) == len(needed):
            own = sets.get(job.name, ())
            found[job.name] = earlier.counting(job.name, own, known, done_counts=job.ends)
    return found


def submit_pipeline(
    jobs: Sequence[JobSpec],
    counts: Counted,
    earlier: Earlier,
    send: Send,
    *,
    after: str | None = None,
) -> tuple[Sent, ...]:
    """Every job that is left, in order; those that need none of them wait for `after` as well."""
    chosen: dict[str, Sent] = {}
    for job in jobs:
        found = counts[job.name]
        if found is not None:
            chosen[job.name] = Sent(submission=found, is_earlier=True)
            continue
        needed = [chosen[name].submission for name in job.after if name in chosen]
        waits = [earlier.still_needed(needed), after if _is_first(job, counts) else None]
        ids = ":".join(each for each in waits if each is not None)
        chosen[job.name] = send(job, ids or None)
    return tuple(chosen.values())


def dry_run(
    jobs: Sequence[JobSpec],
    counts: Counted,
    show: Callable[[JobSpec, str | None], str],
    *,
    after: str | None = None,
) -> str:
    """Every sbatch that `submit_pipeline` would make; ids that are not known yet stand as $NAME.

    `show`: the dry run of one job after these ids.
    """
    texts: list[str] = []
    for job in jobs:
        found = counts[job.name]
        if found is not None:
            texts.append(f"# {job.name}: job {found.job_id} counts; it is not submitted again\n")
            continue
        ids = [_id_of(name, counts[name]) for name in job.after if name in counts]
        ids += [after] if after is not None and _is_first(job, counts) else []
        texts.append(show(job, ":".join(ids) or None))
    return "\n".join(texts)


def settings_by_job(
    sets: Sequence[str], jobs: Sequence[JobSpec], name: str
) -> dict[str, tuple[str, ...]]:
    """`JOB:key=value` settings by job; every one that names no job of the pipeline is refused."""
    names = [job.name for job in jobs]
    found: dict[str, tuple[str, ...]] = {}
    wrong: list[str] = []
    for setting in sets:
        job, colon, rest = setting.partition(":")
        key, equals, _ = rest.partition("=")
        if not colon or job not in names or not key or not equals:
            wrong.append(setting)
        else:
            found[job] = (*found.get(job, ()), rest)
    if wrong:
        raise JobsError(
            f"--set {' '.join(wrong)}: not JOB:KEY=VALUE with a job of the pipeline to {name} "
            f"({', '.join(names)}); write for example --set {names[-1]}:KEY=VALUE"
        )
    return found


def _is_first(job: JobSpec, counts: Counted) -> bool:
    """Whether nothing that it needs is submitted with it."""
    return all(counts[name] is not None for name in job.after if name in counts)


def _id_of(name: str, made: Submission | None) -> str:
    return f"${name.upper().replace('-', '_')}" if made is None else made.job_id
