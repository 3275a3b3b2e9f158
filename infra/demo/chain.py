"""Runs the jobs of a stack in their order: submits, follows, pulls; goes on where it was killed.

Owns when an earlier job counts: same cluster, code and settings, submitted after the job it needs,
and still running, or done with its run record on the cluster. Anything else runs again.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from infra.cli.errors import CliError
from infra.demo import attempt
from infra.demo.attempt import Attempt
from infra.jobs import history, logs, pull, slurm
from infra.jobs.books import Books, open_books
from infra.jobs.budget import remember_forecast
from infra.jobs.dispatch import asking, dispatch, order
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import Job
from infra.jobs.ssh import Connection
from infra.jobs.submit import Submission
from infra.render.archive import hash_files
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

_LINE_EVERY_S = 5.0
_LAST_LINES = 15
_RECENT_DAYS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One job of the chain, finished and pulled."""

    job: Job
    reused: bool
    folder: Path


@dataclass(slots=True, kw_only=True)
class Chain:
    """The jobs of one stack, over one connection."""

    connection: Connection
    outputs: StackOutputs
    state: Path
    files: Mapping[str, bytes]
    """The code that the cluster runs, path -> content: recipes are read from it."""
    git_revision: str | None
    say: Callable[[str], None]

    def run(self, spec: StackSpec, settings: Mapping[str, tuple[str, ...]]) -> list[Step]:
        """Every declared job to its end, each after the one it needs; the first failure ends it."""
        books = open_books(spec, self.state, self.say)
        self._adopt(books)
        chosen: dict[str, Submission] = {}
        reused: set[str] = set()
        for job in in_order(spec):
            sets = settings.get(job.name, ())
            needed = chosen.get(job.after or "")
            earlier = self._earlier(job, sets, needed)
            if earlier is not None:
                reused.add(job.name)
            chosen[job.name] = earlier or self._submit(books, job, sets, needed)
        return [self._finish(each, reused=each.job in reused) for each in chosen.values()]

    def _earlier(
        self, job: JobSpec, sets: tuple[str, ...], needed: Submission | None
    ) -> Submission | None:
        """The newest submission that counts, and a line that says so."""
        for each in self._submissions():
            if (each.job, each.code_hash, each.sets) != (job.name, self._code_hash, sets) or (
                needed is not None and int(each.job_id) < int(needed.job_id)
            ):
                continue
            try:
                found = slurm.find(self.connection, each.job_id)
            except JobsError:
                continue
            if found.name == job.name and not found.finished:
                self.say(f"{job.name}: job {each.job_id} of an earlier run is {found.state}")
                return each
            if found.name == job.name and found.succeeded and self._has_record(each.job_id):
                self.say(
                    f"{job.name}: job {each.job_id} did this with the same code and settings; "
                    "its result is used again"
                )
                return each
        return None

    @property
    def _code_hash(self) -> str:
        return hash_files(self.files)

    def _adopt(self, books: Books) -> None:
        """Writes down the job whose submission was killed before its id came back."""
        begun = attempt.left(self.state)
        if begun is not None and begun.submission.cluster == self.outputs.login_host_key:
            known = (each.job_id for each in self._submissions())
            job = attempt.made(begun, slurm.recent(self.connection, days=_RECENT_DAYS), known)
            if job is not None:
                log_path = self.outputs.log_path(job.name, job.id)
                found = replace(begun.submission, job_id=job.id, log_path=log_path)
                history.remember(self.state, found)
                self._forecast(books, found)
                self.say(f"{job.name}: job {job.id} was submitted by a run that was killed")
        attempt.end(self.state)

    def _forecast(self, books: Books, found: Submission) -> None:
        """The found job's line of the ledger; one that is no longer declared has no forecast."""
        declared = next((job for job in books.spec.jobs if job.name == found.job), None)
        if declared is not None:
            run = books.forecast(declared, found.sets)
            remember_forecast(books, asking(run, self.outputs), found)

    def _submissions(self) -> list[Submission]:
        """What was submitted to this very cluster, newest first."""
        made = history.submissions(self.state, self.outputs.stack)
        return [each for each in reversed(made) if each.cluster == self.outputs.login_host_key]

    def _has_record(self, job_id: str) -> bool:
        record = f"{self.outputs.results_path(job_id)}/run_record.json"
        return self.connection.run(f"test -s {shlex.quote(record)}").ok

    def _submit(
        self, books: Books, job: JobSpec, sets: tuple[str, ...], needed: Submission | None
    ) -> Submission:
        after = None
        if needed is not None and not slurm.find(self.connection, needed.job_id).succeeded:
            after = needed.job_id
        submission = dispatch(
            order(books, job, self.files, sets, say=self.say),
            books,
            self.connection,
            self.outputs,
            state=self.state,
            code_hash=self._code_hash,
            git_revision=self.git_revision,
            say=self.say,
            after=after,
            begin=lambda: attempt.begin(self.state, self._attempt(job.name, sets, after)),
        )
        attempt.end(self.state)
        waits = f", after job {after}" if after else ""
        self.say(f"{job.name}: submitted as job {submission.job_id}{waits}")
        return submission

    def _attempt(self, job: str, sets: tuple[str, ...], after: str | None) -> Attempt:
        planned = Submission(
            stack=self.outputs.stack,
            job=job,
            job_id="",
            code_hash=self._code_hash,
            sets=sets,
            after=after,
            log_path="",
            submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
            cluster=self.outputs.login_host_key,
        )
        jobs = slurm.recent(self.connection, days=_RECENT_DAYS)
        return Attempt(submission=planned, newest_id=attempt.newest(jobs))

    def _finish(self, submission: Submission, *, reused: bool) -> Step:
        """Follows the job to its end and pulls what it left; a failed job is an error."""
        tail = _Tail(submission.job, self.say)
        job = slurm.find(self.connection, submission.job_id)
        if not job.finished:
            job = logs.follow(
                self.connection,
                submission.log_path,
                submission.job_id,
                write=tail.add,
                on_state=lambda job: self.say(f"{job.name}: job {job.id} is {job.state}"),
            )
        if not job.succeeded:
            raise CliError(self._failure(submission, job))
        folder = pull.pull(
            self.connection, self.outputs, submission.job, submission.job_id, state=self.state
        )
        return Step(job=job, reused=reused, folder=folder)

    def _failure(self, submission: Submission, job: Job) -> str:
        """How the job ended, and its last words where it had any."""
        ended = f"{submission.job} (job {job.id}) ended {job.state} with {job.status}"
        try:
            folder = pull.pull(
                self.connection, self.outputs, submission.job, job.id, state=self.state
            )
            lines = (folder / "job.log").read_text(errors="replace").splitlines()
        except (JobsError, FileNotFoundError):
            return f"{ended} before it wrote a log; {job.where or 'Slurm gives no reason'}"
        shown = [line for line in lines if not line.startswith('{"schema')][-_LAST_LINES:]
        return "\n".join([f"{ended}; its log is {folder / 'job.log'}, its last lines:", *shown])


class _Tail:
    """Shows a line of a job's log every few seconds."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._text = b""
        self._shown_at = 0.0

    def add(self, chunk: bytes) -> None:
        """Takes more of the log."""
        self._text = (self._text + chunk)[-20_000:]
        lines = self._lines()
        if lines and time.monotonic() - self._shown_at >= _LINE_EVERY_S:
            self._shown_at = time.monotonic()
            self._say(f"{self._name}: {lines[-1]}")

    def _lines(self) -> list[str]:
        """Whole lines without JSON, which is for programs."""
        whole = self._text.rpartition(b"\n")[0].decode(errors="replace").splitlines()
        return [line for line in whole if line.strip() and line[0] not in " {}[]"]


def in_order(spec: StackSpec) -> list[JobSpec]:
    """The jobs that end and need no server, each after the one it needs; a circle is refused."""
    left = {job.name: job for job in spec.jobs if not (job.is_server or job.is_load_test)}
    done: list[JobSpec] = []
    while left:
        ready = [job for job in left.values() if job.after not in left]
        if not ready:
            raise CliError(f"{spec.name}: jobs: {', '.join(left)} wait for each other; see `after`")
        done += ready
        for job in ready:
            del left[job.name]
    return done
