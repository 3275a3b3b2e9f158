"""Submits declared jobs, pipelines and searches: each is refused with a reason, or is one sbatch.

submit_once.sh decides on the login node, under a lock and by an idempotency key; a call whose
answer was lost is repeated. Its record of the submission stays in the user's folder there until
history and ledger here have it: `recover` reads what a killed command left, and decides of a job
that waits held for the budget. Recipes, plans and data are recipes.py's, money is ledger.py's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shlex
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property
from getpass import getuser
from pathlib import Path
from typing import Final

from cost.runs.ledger import (
    FILE_NAME,
    Entry,
    ForecastEntry,
    Ledger,
    LedgerError,
    decode,
    encode,
)
from infra import files
from infra.clients import slurm
from infra.clients.errors import JobsError, last_words
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell, asked, dependency, refused, sbatch_command
from infra.clients.ssh import Connection, ConnectionLostError, Result, reopen
from infra.jobs import history, recipes, transfer
from infra.jobs.history import EquivalentJobs, Submission, Submitted, oldest_id, submission_from
from infra.jobs.ledger import (
    Admit,
    BudgetRequest,
    Entries,
    JobLedger,
    OverBudgetError,
    decide,
    submit_within_budget,
    write_down,
)
from infra.jobs.recipes import Request, TaskFiles, environment, job_args, plan_name
from infra.render.delivery import hash_files
from infra.render.names import shell_file
from stacks.errors import visible

_NO_DATA, _UNKNOWN, _BUSY, _STALE, _EQUIVALENT, _NO_FOLDER = 66, 72, 74, 75, 76, 77
"""What submit_once.sh ends with where it has not submitted; _UNKNOWN: where nobody knows."""
_MOST_BYTES: Final = 128 * 1024 - 1
"""sshd gives the command to a shell as one argument: execve(2), MAX_ARG_STRLEN with its end."""
_MOST_RECORD_BYTES, _MOST_RECORDS = 65536, 1000
"""Of records of submissions, which are read from a login node that may be hostile."""
Books = Callable[[], JobLedger]
_PATIENCE_S: Final = 20.0
"""For a lost connection: signals wait until the submission is decided."""
_MOST_CALLS: Final = 3


class AlreadyQueuedError(JobsError):
    """A job of equal inputs runs or waits, whoever submitted it: nothing was submitted."""

    def __init__(self, submission: Submission, reason: str) -> None:
        job, job_id = submission.job, submission.job_id
        held = history.held_text(submission, reason)
        what = f"is {held}" if held else "runs or waits"
        super().__init__(f"{job}: job {job_id} of the same code and settings {what}")
        self.submission = submission


@dataclass(frozen=True, kw_only=True)
class Submitter:
    """Submits requests of one checkout to one cluster, within the stack's budget."""

    ledger: JobLedger
    connection: Connection
    outputs: StackOutputs
    state: Path
    code: Mapping[str, bytes]
    git_revision: str | None
    log: Callable[[str], None]
    store: Callable[[], Mapping[str, str] | None] = lambda: None
    """What opens the bucket of run configs; called where something is stored."""
    sync: bool = False
    """Whether the code is sent first, where the cluster has not got it."""

    @cached_property
    def code_hash(self) -> str:
        """Hash of the checkout's code."""
        return hash_files(self.code)

    @property
    def equivalent(self) -> EquivalentJobs:
        """What was submitted with this code."""
        return EquivalentJobs(
            shell=self.connection,
            outputs=self.outputs,
            state=self.state,
            code_hash=self.code_hash,
            log=self.log,
        )

    def submit(
        self,
        request: Request,
        *,
        after: str | None = None,
        force: bool = False,
        nodes: Sequence[str] = (),
        once: bool = False,
        reproduces: str | None = None,
        queued: Callable[[str], None] = lambda _id: None,
    ) -> Submitted:
        """The job in history and ledger; refused where the budget has no room. Call it in `alone`.

        `once`: not beside a job of equal inputs that runs or waits, unless what it needs was
        submitted after that. `queued` gets the id of a new job right after sbatch.
        """
        if request.over is not None:
            raise JobsError(f"{request.over}; nothing was submitted")
        # Of an attached cluster nobody else delivers.
        if self.sync or self.outputs.attached_key is not None:
            transfer.send(self.connection, self.outputs, self.code)
        oldest = oldest_id(self.equivalent.newest(request.needs)) if once else None
        planned = self._planned(request, after=after, reproduces=reproduces)
        key = planned.idempotency_key

        def submit_now(entries: Entries, admit: Admit | None) -> Submission:
            is_held = admit is not None
            try:
                made = sbatch_once(
                    self.connection,
                    self.outputs,
                    planned,
                    tasks=self._files(request, recipes.keep),
                    git_revision=self.git_revision,
                    nodes=nodes,
                    array=request.array,
                    reads=[
                        recipes.prepared_data(each.job, each.recipe, self.outputs)
                        for each in request.tasks.values()
                    ],
                    oldest=oldest,
                    hold=is_held,
                    record=_record(self.state, planned, entries, is_held=is_held),
                    log=self.log,
                )
                queued(made.job_id)
                if admit is not None:
                    admit(made.job_id)
            except OverBudgetError:
                self._forget(planned)
                raise
            except AlreadyQueuedError as same:
                self.log(f"{same}; it is taken")
                made = same.submission
            history.remember(self.state, made, is_new=made.idempotency_key == key)
            return made

        budget = BudgetRequest(
            run=request.run,
            cluster=self.outputs.login_host_key,
            now=datetime.now(UTC),
            user=own_name(),
            force=force,
            num_tasks=len(request.tasks),
        )
        made = submit_within_budget(self.ledger, self.connection, budget, submit_now, log=self.log)
        self._forget(planned)
        return Submitted(submission=made, is_equivalent=made.idempotency_key != key)

    def _forget(self, planned: Submission) -> None:
        with contextlib.suppress(JobsError):  # the next command does it
            self.connection.run(_script(self.outputs, "forget", planned))

    def dry_run(self, request: Request, *, after: str | None = None) -> str:
        """The sbatch of `submit` with its variables, and the script; nothing is queued."""
        tasks = self._files(request, recipes.address)
        exported = environment(
            self.outputs, self.code_hash, git_revision=self.git_revision, tasks=tasks
        )
        planned = self._planned(request, after=after)
        return dry_run(
            self.connection, self.outputs, planned, exported=exported, array=request.array
        )

    def _planned(
        self, request: Request, *, after: str | None, reproduces: str | None = None
    ) -> Submission:
        return plan_submission(
            self.outputs,
            request.name,
            code_hash=self.code_hash,
            sets=request.sets,
            after=after,
            array=request.array,
            reproduces=reproduces,
        )

    def _files(
        self, request: Request, put: Callable[[Mapping[str, str], str, bytes], str]
    ) -> dict[int | None, TaskFiles]:
        """Plan and config of each task; `put` tells where a config is, or stores it there."""
        store, found = self.store(), dict[int | None, TaskFiles]()
        for number, each in request.tasks.items():
            kept = None
            if store is not None and each.config is not None:
                kept = put(store, each.job.recipe, each.config)
                if number is None and put is recipes.keep:
                    self.log(f"config: {kept}")
            found[number] = TaskFiles(plan=each.plan and each.plan.to_bytes(), run_config=kept)
        return found


def plan_submission(
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    array: str | None = None,
    reproduces: str | None = None,
) -> Submission:
    """The submission before Slurm has numbered it, under a new idempotency key.

    The key is a digest of the inputs, by which other machines find it, and a nonce.
    """
    check_job(outputs, job)
    inputs = json.dumps([job, code_hash, list(sets), array, reproduces])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:16]
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
        idempotency_key=f"soperator:{digest}:{secrets.token_hex(6)}",
    )


def sbatch_once(
    connection: Connection,
    outputs: StackOutputs,
    planned: Submission,
    *,
    tasks: Mapping[int | None, TaskFiles] | None = None,
    git_revision: str | None = None,
    nodes: Sequence[str] = (),
    array: str | None = None,
    reads: Sequence[tuple[str, ...]] = (),
    oldest: int | None = None,
    hold: bool = False,
    record: bytes = b"",
    log: Callable[[str], None] = lambda _line: None,
) -> Submission:
    """Submits what is planned if the cluster has its code; one round trip.

    `nodes`: what it must run on; `array`: which tasks; None: all. `reads`: groups of paths; one of
    each must be there, unless it waits for a job that may make it. `oldest`: a job of equal inputs
    with this id or a later one, which runs or waits, is raised instead. `hold`: it waits to be let
    go. `record`: what the cluster keeps of the submission until `forget`.
    """
    job, tasks = planned.job, tasks or {}
    plans = dict.fromkeys(each.plan for each in tasks.values() if each.plan is not None)
    sbatch = sbatch_command(
        f"jobs/{job}",
        job_args(planned.sets),
        after=planned.after,
        export=environment(outputs, planned.code_hash, git_revision=git_revision, tasks=tasks),
        nodes=nodes,
        array=array,
        comment=planned.idempotency_key,
        hold=hold,
    )
    script = _script(
        outputs,
        "submit",
        planned,
        oldest="" if oldest is None else str(oldest),
        record_size=str(len(record)),
        releases=_releases(outputs, planned.code_hash),
        current=f"{outputs.code_path}/current",
        folders=[outputs.places[each] for each in ("logs", "results")] if outputs.shared else [],
        data=outputs.places.get("data", ""),
        reads=["\n".join(each) for each in dict.fromkeys(reads) if each and planned.after is None],
        plans=[f"{len(each)} {plan_name(each)}" for each in plans],
    )
    command = f"{script} {sbatch}"
    if len(command.encode()) > _MOST_BYTES or len(record) > _MOST_RECORD_BYTES:
        raise JobsError(
            f"{job}: {len(tasks)} tasks make a command of {len(command.encode()):,} bytes, and "
            f"the login node takes {_MOST_BYTES:,}; nothing was submitted: declare two searches "
            "with fewer trials each"
        )
    result = _call(connection, command, record + b"".join(plans), log)
    if not result.ok:
        raise _refusal(outputs, planned, result)
    said = result.stdout.strip()
    number = slurm.submitted_id(said.removesuffix(" found"))
    if number != said:
        log(f"{job}: job {number} came of it all the same ({last_words(result.stderr)})")
    return _numbered(outputs, planned, number)


def _refusal(outputs: StackOutputs, planned: Submission, result: Result) -> JobsError:
    """The error for a submission that was not made."""
    job, code_hash, said = planned.job, planned.code_hash, result.stdout.strip()
    why = _one_line(result.stderr)
    if result.exit_code == _EQUIVALENT:
        number, _, rest = said.partition("|")
        reason, _, comment = rest.partition("|")
        found = _numbered(outputs, planned, slurm.job_id(number), comment)
        return AlreadyQueuedError(found, reason)
    words = {
        _STALE: f"the cluster has code {said} live, and {code_hash} of this checkout is not there "
        f"in full; run `pulumi up --stack {outputs.stack}`, or submit with --sync to send it now",
        _NO_DATA: f"{said} is not on the cluster, or is empty; prepare it first (soperator submit "
        f"{job} --pipeline -s STACK submits what {job} needs), bring it with soperator data push "
        "-s STACK, or name the job that makes it with --after ID; nothing was submitted",
        _NO_FOLDER: f"{last_words(result.stderr)}; nothing was submitted",
        _BUSY: f"{why}; nothing was submitted: try again",
        _UNKNOWN: f"{why}; whether a job came of it is not known: the next command looks again",
    }
    if result.exit_code in words:
        return JobsError(f"{job}: {words[result.exit_code]}")
    return refused(f"{job}: sbatch", result)


def _call(connection: Connection, command: str, stdin: bytes, log: Callable[[str], None]) -> Result:
    """The answer; the same call again where it was lost, which submits nothing twice."""
    for _ in range(_MOST_CALLS - 1):
        try:
            return connection.run(command, stdin=stdin)
        except ConnectionLostError as lost:
            log(lost.trying_again)
            reopen(connection, patience_s=_PATIENCE_S)
    return connection.run(command, stdin=stdin)


def _script(
    outputs: StackOutputs,
    verb: str,
    planned: Submission | None = None,
    **variables: str | Sequence[str],
) -> str:
    """The command that runs submit_once.sh with these variables; words that follow are sbatch's."""
    of = {} if planned is None else {"key": planned.idempotency_key or "", "name": planned.job}
    lines = [
        f"{name}={shlex.quote(value) if isinstance(value, str) else f'({shlex.join(value)})'}"
        for name, value in {"own": outputs.own_path, "key": "", **of, **variables}.items()
    ]
    text = Path(__file__).with_name("submit_once.sh").read_text(encoding="utf-8")
    body = text[text.index("end() {") :]
    words = [*lines, f"verb={verb}", shell_file("own_folder"), body]
    return f"bash -c {shlex.quote(chr(10).join(words))} submit_once"


def _record(state: Path, planned: Submission, entries: Entries, *, is_held: bool = False) -> bytes:
    """What the cluster keeps of the submission: a line under this machine's seal."""
    lines = [encode(entry) for entry in entries]
    text = json.dumps({"submission": asdict(planned), "entries": lines, "is_held": is_held})
    path = _seal_path(state, planned.stack)
    if not path.exists():
        files.write(path, secrets.token_bytes(32), mode=0o600)
    return f"{_seal(path, text)} {text}".encode()


def _records(
    state: Path, shell: Shell, outputs: StackOutputs
) -> list[tuple[Submission, tuple[Entry, ...], bool]]:
    """Submissions of this machine that the cluster has a record of; others have another seal.

    With what the ledger gets, and whether the job was submitted held.
    """
    path = _seal_path(state, outputs.stack)
    if not path.exists():
        return []
    printed = asked(shell, "records of submissions", _script(outputs, "records"))
    found: list[tuple[Submission, tuple[Entry, ...], bool]] = []
    for line in printed.split("\n", _MOST_RECORDS)[:_MOST_RECORDS]:
        seal, _, text = line.partition(" ")
        if len(line) > _MOST_RECORD_BYTES or not hmac.compare_digest(
            seal.encode(), _seal(path, text).encode()
        ):
            continue
        values = json.loads(text)
        made = submission_from(values["submission"])
        if made is not None and made.stack == outputs.stack:
            entries = tuple(decode(entry) for entry in values["entries"])
            found.append((made, entries, values.get("is_held", False)))
    return found


def _seal_path(state: Path, stack: str) -> Path:
    return state / "runs" / stack / ".submit.key"


def _seal(path: Path, text: str) -> str:
    return hmac.new(path.read_bytes(), text.encode(errors="replace"), hashlib.sha256).hexdigest()


@contextmanager
def alone(
    state: Path,
    connection: Connection,
    outputs: StackOutputs,
    log: Callable[[str], None],
    books: Books | None = None,
) -> Generator[None]:
    """No other process of this state folder submits to the stack in the block.

    What a killed one submitted is written down first; JobsError where nobody knows of it. `books`:
    opens the ledger by whose budget one that waits held is decided; None leaves it.
    """
    with _locked(state, outputs.stack, log):
        for path in history.damaged(state, outputs.stack):
            log(f"{path}: damaged, so its job may be submitted once more; remove it")
        _recover(state, connection, outputs, log, books)
        yield


def recover(
    state: Path,
    connection: Connection,
    outputs: StackOutputs,
    log: Callable[[str], None],
    books: Books | None = None,
) -> None:
    """Writes down what a killed command submitted, unless one is on its way or nobody answers.

    For every command that enters the cluster; one that submits must know, and uses `alone`.
    """
    with contextlib.suppress(JobsError, LedgerError, BlockingIOError):
        if _records(state, connection, outputs):
            with _locked(state, outputs.stack, None):
                _recover(state, connection, outputs, log, books)


def _recover(
    state: Path,
    shell: Shell,
    outputs: StackOutputs,
    log: Callable[[str], None],
    books: Books | None,
) -> None:
    cluster = outputs.login_host_key
    here = history.submissions(state, outputs.stack, cluster)
    by_key = {each.idempotency_key: each for each in here}
    for planned, entries, is_held in _records(state, shell, outputs):
        # Ids start again on a cluster that was made anew, and its jobs are gone.
        if planned.cluster == cluster:
            known = by_key.get(planned.idempotency_key)
            made = known or _looked_up(shell, outputs, planned)
            if is_held and known is None and made is not None:
                if books is None:
                    continue
                expected = next(each for each in entries if isinstance(each, ForecastEntry))
                try:
                    with (ledger := books()).file.locked() as opened:
                        decide(ledger, opened, shell, expected, made.job_id)
                except OverBudgetError as over:
                    log(f"{over}; the command that submitted it was cut off")
                    made = None
            if made is not None:
                if known is None:
                    history.remember(state, made, is_new=False)
                with Ledger(state / "runs" / outputs.stack / FILE_NAME).locked() as opened:
                    is_new = write_down(opened, entries, made.job_id)
                if is_new or known is None:
                    log(
                        f"{made.job}: job {made.job_id} was submitted by a command that was cut "
                        "off; it is written down"
                    )
        shell.run(_script(outputs, "forget", planned))


def _looked_up(shell: Shell, outputs: StackOutputs, planned: Submission) -> Submission | None:
    """What came of the submission; None: nothing did."""
    result = shell.run(_script(outputs, "look_up", planned))
    if not result.ok:
        raise JobsError(
            f"{planned.job}: {_one_line(result.stderr)}; whether a job came of the submission that "
            "was cut off is not known: try again"
        )
    number = result.stdout.strip()
    return _numbered(outputs, planned, slurm.job_id(number)) if number else None


def _one_line(stderr: str) -> str:
    return "; ".join(line.strip() for line in stderr.splitlines() if line.strip())


def _numbered(
    outputs: StackOutputs, planned: Submission, job_id: str, key: str | None = None
) -> Submission:
    return replace(
        planned,
        job_id=job_id,
        log_path=outputs.log_path(planned.job, job_id),
        idempotency_key=key or planned.idempotency_key,
    )


@contextmanager
def _locked(state: Path, stack: str, log: Callable[[str], None] | None) -> Generator[None]:
    """The lock of submissions from this state folder; `log` is told of a wait.

    Without `log` nobody waits: BlockingIOError.
    """
    path = state / "runs" / stack / ".submit.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise JobsError(
            f"{path}: {error.strerror or error}; nothing was submitted: make its folder yours, or "
            "set SOPERATOR_STATE"
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if log is None:
                raise
            other = os.pread(descriptor, 20, 0).decode(errors="replace").strip() or "unknown"
            log(
                f"another submission to {stack} is on its way from here (process {other}); "
                "waiting for it"
            )
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise JobsError(
                f"{path}: {error.strerror or error}; nothing was submitted: set SOPERATOR_STATE to "
                "a folder on a filesystem that has locks"
            ) from error
        with contextlib.suppress(OSError):  # a full disk: only who waits would read it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def own_name() -> str:
    """Who submits, as this machine knows them; the number where it has no name for them."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _releases(outputs: StackOutputs, code_hash: str) -> list[str]:
    """Where the code may lie: what the user sent with --sync, and what `up` did."""
    paths = dict.fromkeys((outputs.own_path, outputs.code_path))
    return [f"{path}/releases/{code_hash}" for path in paths]


def dry_run(
    shell: Shell,
    outputs: StackOutputs,
    planned: Submission,
    *,
    exported: Sequence[str] = (),
    array: str | None = None,
) -> str:
    """What would be submitted and when Slurm would start it; nothing is queued.

    `exported`: variables of `environment`. Ids to wait for are only shown: a job that is not
    submitted yet has none. Code that `submit` refuses is named.
    """
    script, words = f"jobs/{planned.job}", job_args(planned.sets)
    options = [] if planned.after is None else dependency(planned.after)
    options += [] if array is None else [f"--array={array}"]
    options.append(f"--export={','.join(['ALL', *exported])}")
    shown = shlex.join(["sbatch", "--parsable", *options, script, *words])
    tested = sbatch_command(script, words, array=array, test_only=True)
    # Of code that is not there the live one is shown.
    folders = shlex.join(_releases(outputs, planned.code_hash))
    result = shell.run(
        f"cd {shlex.quote(outputs.code_path)} && for code in {folders} $(readlink -f current); do "
        f'[ ! -e "$code.whole" ] || break; done; cd "$code" && pwd && cat {script} && {tested}'
    )
    if not result.ok:
        raise refused(f"{planned.job}: sbatch --test-only", result)
    release, _, text = result.stdout.partition("\n")
    stale = ""
    if (deployed := release.rpartition("/")[2]) != planned.code_hash:
        stale = (
            f"# The cluster has code {deployed}, this checkout is {planned.code_hash}: the script "
            "below is the cluster's, and submit refuses without --sync or pulumi up.\n"
        )
    lines = f"# {shown}\n# {result.stderr.strip()}\n{stale}{text}".split("\n")
    return "\n".join(map(visible, lines))


def check_job(outputs: StackOutputs, job: str) -> None:
    """Refuses a job that the stack does not declare, with the nearest name."""
    if job in outputs.jobs:
        return
    near = get_close_matches(job, outputs.jobs, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    have = ", ".join(sorted(outputs.jobs))
    raise JobsError(f"{outputs.stack}: jobs: {job!r} is not declared{hint} (has: {have})")
