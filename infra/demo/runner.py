"""One job of the demo: found again, submitted, followed to its end and pulled.

When an earlier job counts is infra/jobs/earlier.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from infra.demo.tail import Tail
from infra.jobs import logs, pull, recovery, slurm
from infra.jobs.books import Books, open_books
from infra.jobs.dispatch import dispatch, order
from infra.jobs.earlier import Earlier
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import Job
from infra.jobs.ssh import Connection
from infra.jobs.submit import Submission
from infra.render.archive import hash_files
from stacks.errors import UserError
from stacks.slurm_spec import TRAIN_MODULE, JobSpec
from stacks.spec import StackSpec

_LAST_LINES = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One job of the demo, ended and pulled."""

    job: Job
    reused: bool
    """Whether an earlier run submitted it."""
    folder: Path


@dataclass(slots=True, kw_only=True)
class Runner:
    """Jobs of one stack, over one connection."""

    connection: Connection
    spec: StackSpec
    outputs: StackOutputs
    state: Path
    files: Mapping[str, bytes]
    """The code that the cluster runs, path -> content: recipes are read from it."""
    git_revision: str | None
    say: Callable[[str], None]
    code_hash: str = field(init=False)
    _books: Books = field(init=False)

    def __post_init__(self) -> None:
        self.code_hash = hash_files(self.files)
        self._books = open_books(self.spec, self.state, self.say)

    @property
    def earlier(self) -> Earlier:
        """What was submitted before, and whether it counts."""
        return Earlier(
            shell=self.connection,
            outputs=self.outputs,
            state=self.state,
            code_hash=self.code_hash,
            say=self.say,
        )

    def alone(self) -> AbstractContextManager[None]:
        """Nothing else submits in it, and the job of a run that was killed is written down."""
        return recovery.alone(self.state, self.connection, self.outputs, self.say)

    def submit(self, job: JobSpec, sets: tuple[str, ...], after: str | None = None) -> Submission:
        """Submits the job, in `alone`."""
        # Nobody declares how many tokens a job reads that does not train: no forecast, no line.
        say = self.say if job.module == TRAIN_MODULE else lambda _line: None
        sent = dispatch(
            order(self._books, job, self.files, sets, say=say),
            self._books,
            self.connection,
            self.outputs,
            state=self.state,
            code_hash=self.code_hash,
            git_revision=self.git_revision,
            say=say,
            after=after,
        )
        waits = f", after job {after}" if after else ""
        self.say(f"{job.name}: submitted as job {sent.submission.job_id}{waits}")
        return sent.submission

    def finish(self, submission: Submission, *, reused: bool) -> Step:
        """Follows the job to its end and pulls what it left; a failed job is an error."""
        job = self.follow(submission)
        if not job.succeeded:
            raise UserError(self.failure(submission, job))
        return Step(job=job, reused=reused, folder=self.pull(submission))

    def follow(self, submission: Submission) -> Job:
        """The job at its end; a line of its log is shown now and then."""
        job = slurm.find(self.connection, submission.job_id)
        if job.finished:
            return job
        return logs.follow(
            self.connection,
            submission.log_path,
            submission.job_id,
            write=Tail(submission.job, self.say).add,
            on_state=lambda job: self.say(f"{job.name}: job {job.id} is {job.state}"),
        )

    def pull(self, submission: Submission) -> Path:
        """The folder on this machine with what the job left."""
        return pull.pull(
            self.connection, self.outputs, submission.job, submission.job_id, state=self.state
        )

    def failure(self, submission: Submission, job: Job) -> str:
        """How the job ended, and its last words where it had any."""
        ended = f"{submission.job} (job {job.id}) ended {job.state} with {job.status}"
        try:
            folder = self.pull(submission)
            lines = (folder / "job.log").read_text(errors="replace").splitlines()
        except (JobsError, FileNotFoundError):
            return f"{ended} before it wrote a log; {job.where or 'Slurm gives no reason'}"
        shown = [line for line in lines if not line.startswith('{"schema')][-_LAST_LINES:]
        return "\n".join([f"{ended}; its log is {folder / 'job.log'}, its last lines:", *shown])
