"""Submits declared jobs, pipelines and searches: each is refused with a reason, or is one sbatch.

submit_once.sh decides on the login node, under a lock and by an idempotency key; a call whose
answer was lost is repeated. What is sent stays in the state folder, and its key on the cluster,
until history and ledger have the job: `recover` asks what came of a killed command, and decides of
a job that waits held for the budget. Recipes, plans, data are recipes.py's, money is ledger.py's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shlex
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cost.runs.ledger import FILE_NAME, ForecastEntry, Ledger, OpenLedger, decode, encode
from infra import files
from infra.clients import slurm
from infra.clients.errors import JobsError, last_words
from infra.clients.ssh import Connection, ConnectionLostError, Result, reopen
from infra.jobs import history, ledger, recipes, transfer
from infra.jobs.history import Submission, Submitted, SubmittedJobs
from infra.jobs.ledger import Entries, JobLedger, OpenBooks, OverBudgetError
from infra.jobs.recipes import Request
from infra.jobs.records import read_object
from infra.render.delivery import pack
from infra.render.names import shell_file
from stacks.errors import UserError, visible

_UNKNOWN, _BUSY, _STALE, _EQUIVALENT, _NOT_THERE = 72, 74, 75, 76, 77
"""What submit_once.sh ends with where it has not submitted; _UNKNOWN: where nobody knows."""
_MOST_BYTES: Final = 128 * 1024 - 1
"""sshd gives the command to a shell as one argument: execve(2), MAX_ARG_STRLEN with its end."""
_PATIENCE_S: Final = 20.0
"""For a lost connection: signals wait until the submission is decided."""
_MOST_CALLS: Final = 3
_LATE_S: Final = 300.0
"""How long a killed command's call may still reach sbatch: it waits a minute for the lock there."""
_AWAY_S: Final = 31 * 86400.0
"""How long what went to another cluster is kept, should the stack lead there again."""


@dataclass(frozen=True, kw_only=True)
class Submitter(SubmittedJobs):
    """Submits jobs of the stack, each once and within its budget; keeps their history."""

    connection: Connection
    books: Callable[[], JobLedger]
    """What opens the stack's ledger; called where something is submitted or waits held."""
    git_revision: str | None = None
    store: Callable[[], Mapping[str, str] | None] = lambda: None
    """What opens the bucket of run configs; called where something is stored."""
    sent_code: Mapping[str, bytes] | None = None
    """By path: goes first, where the cluster has not got it; None: somebody else delivers."""

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """No other process of this state folder submits to the stack in the block.

        What a killed one submitted is written down first; JobsError where nobody knows of it.
        """
        with self._locked(waits=True):
            damaged = [path for path, left in self._left().items() if left is None]
            for path in (*history.damaged(self.state, self.outputs.stack), *damaged):
                again = "so its job may be submitted once more: upgrade, or remove it"
                self.log(f"{path}: damaged or of a newer version, {again}")
            self._recover()
            yield

    def recover(self) -> None:
        """Writes down what a killed command submitted, unless one is on its way or nobody answers.

        For every command that enters the cluster; one that submits must know, and uses `alone`.
        """
        try:
            if self._left():
                with self._locked(waits=False):
                    self._recover()
        except ConnectionLostError:
            pass  # whatever this command is for says so
        except UserError as error:
            if not isinstance(error, JobsError):
                self.log(f"{error}; a job of a command that was cut off waits held for it")
            elif not isinstance(error.__cause__, BlockingIOError):  # one is on its way
                self.log(str(error))

    def submit(
        self,
        request: Request,
        *,
        force: bool = False,
        once: bool = False,
        queued: Callable[[str], None] = lambda _id: None,
    ) -> Submitted:
        """The job in history and ledger; refused where the budget has no room. Call it in `alone`.

        `once`: not beside a job of equal inputs that runs or waits, unless what it needs was
        submitted after that. `queued` gets the id of a new job right after sbatch.
        """
        if request.search is not None and request.search.over is not None:
            raise JobsError(f"{request.search.over}; nothing was submitted")
        if self.sent_code is not None:
            transfer.send(self.connection, self.outputs, self.sent_code)
        oldest = history.oldest_id(self.newest(request.needs)) if once else None
        planned = self.planned(request)
        cluster = self.outputs.login_host_key
        with replace(self.books(), log=self.log).locked(self.connection, cluster) as books:
            entry = ledger.expected(request.run, cluster, len(request.tasks))
            entries, is_held = books.within_budget(entry, force=force)
            made = self.sbatch_once(planned, request, oldest=oldest, hold=is_held, entries=entries)
            is_new = made.idempotency_key == planned.idempotency_key
            if is_new:
                queued(made.job_id)
            try:
                if is_new and is_held:
                    self._decide(books, entries, made)
            except OverBudgetError:
                self._forget(planned)
                raise
            self._book(books.file, entries, made, is_new=is_new)
            books.tell()
        self._forget(planned)
        return Submitted(submission=made, is_equivalent=not is_new)

    def _decide(self, books: OpenBooks, entries: Entries, made: Submission) -> None:
        """Lets a job that waits held go, or takes it back, by the prices of the books."""
        if isinstance(entries[0], ForecastEntry):
            later = f"the next command of {made.stack} from here decides about it"
            with ledger.named(made.job_id, f"is submitted and waits held: {later}"):
                books.decide(entries[0], made.job_id)

    def _book(self, file: OpenLedger, entries: Entries, made: Submission, *, is_new: bool) -> bool:
        """Writes it down; whether the ledger had it not."""
        history.remember(self.state, made, is_new=is_new)
        later = f"make room, and the next command of {made.stack} from here puts it there"
        with ledger.named(made.job_id, f"is submitted but not in the ledger: {later}"):
            return ledger.write_down(file, entries, made.job_id)

    def planned(self, request: Request) -> Submission:
        """The submission before Slurm has numbered it, under a new idempotency key.

        The key is a digest of the inputs, by which other machines find it, and a nonce.
        """
        self.outputs.check_job(request.name)
        inputs = [request.name, self.code_hash, request.sets, request.array, request.reproduces]
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]
        return Submission(
            stack=self.outputs.stack,
            job=request.name,
            job_id="",
            code_hash=self.code_hash,
            sets=request.sets,
            after=request.after,
            log_path="",
            submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
            cluster=self.outputs.login_host_key,
            reproduces=request.reproduces,
            idempotency_key=f"soperator:{digest}:{secrets.token_hex(6)}",
        )

    def sbatch_once(
        self,
        planned: Submission,
        request: Request,
        *,
        oldest: int | None = None,
        hold: bool = False,
        entries: Entries = (),
    ) -> Submission:
        """Submits what is planned if the cluster has its code and data; one round trip.

        `oldest`: a job of equal inputs with this id or a later one, which runs or waits, is taken
        instead. `hold`: it waits to be let go. `entries`: what the ledger gets of it, by whichever
        command.
        """
        job, outputs, tasks = planned.job, self.outputs, request.tasks.values()
        plans = [each.plan.to_bytes() for each in tasks if each.plan is not None]
        # Of each group one path must be there, unless the job waits for one that may make it.
        reads = dict.fromkeys(
            "\n".join(recipes.prepared_data(each.job, each.recipe, outputs))
            for each in (tasks if planned.after is None else ())
        )
        sbatch = self._sbatch(request, self.log, comment=planned.idempotency_key, hold=hold)
        script = self._script(
            planned,
            oldest="" if oldest is None else str(oldest),
            releases=self._releases,
            current=f"{outputs.code_path}/current",
            folders=[outputs.places[each] for each in ("logs", "results") if outputs.shared],
            data=outputs.places.get("data", ""),
            reads=[*filter(None, reads)],
        )
        command = f"{script} {sbatch}"
        if len(command.encode()) > _MOST_BYTES:
            raise JobsError(
                f"{job}: {len(tasks)} tasks make a command of {len(command.encode()):,} bytes, and "
                f"the login node takes {_MOST_BYTES:,}; nothing was submitted: declare two "
                "searches with fewer trials each"
            )
        if entries:
            lines, path = [encode(entry) for entry in entries], self._left_file(planned)
            left = {"submission": asdict(planned), "entries": lines, "is_held": hold}
            try:
                files.write(path, json.dumps(left))
            except OSError as error:
                why = error.strerror or error
                raise JobsError(f"{path}: {why}; nothing was submitted: make room there") from error
        archive = pack({recipes.plan_name(each): each for each in plans})
        return self._answered(planned, *self._call(command, archive))

    def dry_run(self, request: Request) -> str:
        """What would be submitted and when Slurm would start it; nothing is queued.

        Ids to wait for are only shown: a job that is not submitted yet has none. Code that `submit`
        refuses, as it is not there, is named, and the live one shown.
        """
        self.outputs.check_job(request.name)
        shown = self._sbatch(request, log=None)
        script, words = f"jobs/{request.name}", recipes.job_args(request.sets)
        tested = slurm.sbatch_command(script, words, array=request.array, test_only=True)
        result = self.connection.run(
            f"cd {shlex.quote(self.outputs.code_path)} && for code in {shlex.join(self._releases)} "
            '$(readlink -f current); do [ ! -e "$code.whole" ] || break; done; cd "$code" && pwd '
            f"&& cat {script} && {tested}"
        )
        if not result.ok:
            raise slurm.refused(f"{request.name}: sbatch --test-only", result)
        release, _, text = result.stdout.partition("\n")
        deployed, stale = release.rpartition("/")[2], ""
        if deployed != self.code_hash:
            stale = (
                f"# The cluster has code {deployed}, this checkout is {self.code_hash}: the script "
                "below is the cluster's, and submit refuses without --sync or pulumi up.\n"
            )
        lines = f"# {shown}\n# {result.stderr.strip()}\n{stale}{text}".split("\n")
        return "\n".join(map(visible, lines))

    def _left_file(self, planned: Submission) -> Path:
        return self._own_file(f"left.{(planned.idempotency_key or '').rpartition(':')[2]}")

    def _left(self) -> dict[Path, tuple[Submission, Entries, bool] | None]:
        """What was sent from here and is not written down, by file; None: it is damaged.

        With what the ledger gets, and whether the job was submitted held.
        """
        found: dict[Path, tuple[Submission, Entries, bool] | None] = {}
        for path in sorted(self._own_file("left").parent.glob(".submit.left.*")):
            values, found[path] = read_object(path), None
            with contextlib.suppress(ValueError, TypeError):
                entries = tuple(map(decode, values.get("entries", ())))
                made = history.submission_from(values.get("submission", {}))
                if made is not None and entries:
                    found[path] = made, entries, values.get("is_held", False)
        return found

    def _recover(self) -> None:
        """Writes down what came of that which was left, or takes it back for the budget."""
        by_key = {each.idempotency_key: each for each in self.submissions()}
        for path, left in self._left().items():
            if left is None or path != self._left_file(left[0]):  # which is a copy
                continue
            planned, entries, is_held = left
            # Ids start again on a cluster that was made anew; one of before may be entered again.
            is_here = planned.cluster == self.outputs.login_host_key
            known = by_key.get(planned.idempotency_key)
            made = known or (self._looked_up(planned) if is_here else None)
            if made is not None:
                try:
                    if is_held and known is None:
                        with self.books().locked(self.connection, made.cluster) as books:
                            self._decide(books, entries, made)
                    own = history.run_folder(self.state, made.stack, FILE_NAME)
                    with Ledger(own).locked() as file:
                        is_new = self._book(file, entries, made, is_new=False)
                    if is_new or known is None:
                        self.log(
                            f"{made.job}: job {made.job_id} was submitted by a command that was "
                            "cut off; it is written down"
                        )
                except OverBudgetError as over:
                    self.log(f"{over}; the command that submitted it was cut off")
            elif time.time() < path.stat().st_mtime + (_LATE_S if is_here else _AWAY_S):
                continue
            self._forget(planned)

    def _looked_up(self, planned: Submission) -> Submission | None:
        """What came of the submission; None: nothing did."""
        result = self.connection.run(self._script(planned))
        if not result.ok:
            raise JobsError(
                f"{planned.job}: {last_words(result.stderr)}; whether a job came of the submission "
                "that was cut off is not known: try again"
            )
        number = result.stdout.strip()
        return self._numbered(planned, slurm.job_id(number)) if number else None

    def _forget(self, planned: Submission) -> None:
        """Removes the key on the cluster, then the file here; a later command, if none answers."""
        left = self._left_file(planned)
        record = f"{self.outputs.own_path}/submissions/{left.suffix.removeprefix('.')}"
        with contextlib.suppress(JobsError):
            self.connection.run(shlex.join(["rm", "-f", record]))
            left.unlink(missing_ok=True)

    def _call(self, command: str, stdin: bytes) -> tuple[Result, bool]:
        """The answer, and whether one before it was lost; a call again submits nothing twice."""
        for number in range(_MOST_CALLS - 1):
            try:
                return self.connection.run(command, stdin=stdin), number > 0
            except ConnectionLostError as lost:
                self.log(lost.trying_again)
                reopen(self.connection, patience_s=_PATIENCE_S)
        return self.connection.run(command, stdin=stdin), True

    def _answered(self, planned: Submission, result: Result, was_lost: bool) -> Submission:
        """What came of the call; of one before it, too, where an answer `was_lost`."""
        job, code, said = planned.job, result.exit_code, result.stdout.strip()
        if code == _EQUIVALENT:
            number, reason, key = [*said.split("|", 2), "", ""][:3]
            if key in ("", planned.idempotency_key):  # as a new job's, which may be cancelled
                raise JobsError(
                    f"{job}: the login node answered {said!r}, expected an equal job, its state "
                    "and its own key; look at squeue before you submit again"
                )
            made = self._numbered(planned, slurm.job_id(number), idempotency_key=key)
            what = f"is {held}" if (held := history.held_text(made, reason)) else "runs or waits"
            self.log(f"{job}: job {number} of the same code and settings {what}; it is taken")
            return made
        if result.ok:
            number = slurm.submitted_id(said.removesuffix(" found"))
            if number != said:
                why = last_words(result.stderr)
                self.log(f"{job}: job {number} came of it all the same ({why})")
            return self._numbered(planned, number)
        # A lost call may still wait for the lock; a signal (128 and more) may follow sbatch.
        if code >= 128 or (was_lost and code == _BUSY):
            code = _UNKNOWN
        elif not was_lost and code != _UNKNOWN:
            self._left_file(planned).unlink(missing_ok=True)
        why = "; ".join(line.strip() for line in result.stderr.splitlines() if line.strip())
        words = {
            _STALE: f"the cluster has code {said} live, and {planned.code_hash} of this checkout "
            f"is not there in full; run `pulumi up --stack {planned.stack}`, or submit with --sync "
            "to send it now",
            _NOT_THERE: f"{last_words(result.stderr)}; nothing was submitted",
            _BUSY: f"{why}; nothing was submitted: try again",
            _UNKNOWN: f"{why}; whether a job came of it is not known: the next command looks again",
        }
        if code in words:
            raise JobsError(f"{job}: {words[code]}")
        raise slurm.refused(f"{job}: sbatch", result)

    def _script(self, planned: Submission, **variables: str | Sequence[str]) -> str:
        """What runs submit_once.sh for the key; the words of sbatch follow, or it only looks up."""
        of = {"own": self.outputs.own_path, "key": planned.idempotency_key or ""}
        lines = [
            f"{name}={shlex.quote(value) if isinstance(value, str) else f'({shlex.join(value)})'}"
            for name, value in {**of, "name": planned.job, **variables}.items()
        ]
        words = [*lines, shell_file("own_folder"), shell_file("submit_once", __file__)]
        return f"bash -c {shlex.quote(chr(10).join(words))} submit_once"

    def _sbatch(self, request: Request, log: ledger.Log | None, **options: Any) -> str:
        """The command; the configs of what it submits are stored where `log` is given."""
        code, revision, store = self.code_hash, self.git_revision, self.store()
        return recipes.sbatch(request, self.outputs, code, revision, store, log, **options)

    @property
    def _releases(self) -> list[str]:
        """Where the code may lie: what the user sent with --sync, and what `up` did."""
        paths = dict.fromkeys((self.outputs.own_path, self.outputs.code_path))
        return [f"{path}/releases/{self.code_hash}" for path in paths]

    def _numbered(self, planned: Submission, job_id: str, **others: str) -> Submission:
        log_path = self.outputs.log_path(planned.job, job_id)
        return replace(planned, job_id=job_id, log_path=log_path, **others)

    def _own_file(self, kind: str) -> Path:
        return self.state / "runs" / self.outputs.stack / f".submit.{kind}"

    @contextlib.contextmanager
    def _locked(self, *, waits: bool) -> Generator[None]:
        """The lock of submissions from this state folder; JobsError where it `waits` for nobody."""
        path, told = self._own_file("lock"), f"another submission to {self.outputs.stack} is on its"

        def wait(process: str) -> None:
            self.log(f"{told} way from here (process {process}); waiting for it")

        with contextlib.ExitStack() as closing:
            try:
                refusal = JobsError(f"{path} is held")
                closing.enter_context(files.alone(path, refusal, wait if waits else None))
            except OSError as error:
                why, fix = error.strerror or error, "make its folder yours, or set SOPERATOR_STATE"
                if error.filename is None:  # flock(2) names none
                    fix = "set SOPERATOR_STATE to a folder on a filesystem that has locks"
                raise JobsError(f"{path}: {why}; nothing was submitted: {fix}") from error
            yield
