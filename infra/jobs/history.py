"""Submissions made from this checkout, and which earlier job already did what is asked for again.

Files: `<state>/runs/<stack>/<job id>/submission.json`. A submission says what was asked, a run
record what came.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra import files
from infra.clients import slurm
from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job, Shell
from infra.jobs.submit import IS_OWN, Submission
from stacks.files import read_text

SUBMISSION = "submission.json"


def run_folder(state: Path, stack: str, job_id: str) -> Path:
    """Where everything about one job is kept on this machine."""
    return state / "runs" / stack / job_id


def remember(state: Path, submission: Submission, *, is_new: bool = True) -> None:
    """Writes the submission down whole; drops the run of a former cluster that had its id.

    `is_new`: False for a job that was found, of which results may have been pulled.
    """
    folder = run_folder(state, submission.stack, submission.job_id)
    former = read_submission(folder / SUBMISSION)
    if is_new or (former is not None and former.cluster != submission.cluster):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        files.write(folder / SUBMISSION, json.dumps(asdict(submission), indent=2) + "\n")
    except OSError as error:
        raise JobsError(
            f"{folder}: {error.strerror or error}; job {submission.job_id} is submitted but not "
            "written down here: make room, and the next command writes it down"
        ) from error


def submissions(state: Path, stack: str) -> tuple[Submission, ...]:
    """Submissions to this stack, oldest first; a damaged file is as good as none."""
    found = [
        submission
        for path in (state / "runs" / stack).glob(f"*/{SUBMISSION}")
        if (submission := read_submission(path)) is not None
    ]
    return tuple(sorted(found, key=lambda each: (each.submitted_at, int(each.job_id))))


def damaged(state: Path, stack: str) -> tuple[Path, ...]:
    """Files of submissions to this stack that say nothing any more."""
    found = sorted((state / "runs" / stack).glob(f"*/{SUBMISSION}"))
    return tuple(path for path in found if read_submission(path) is None)


def read_submission(path: Path) -> Submission | None:
    """The submission in the file; a damaged one is as good as none."""
    try:
        values = json.loads(read_text(path))
        found = Submission(**{**values, "sets": tuple(values["sets"])})
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (found.stack, found.job, found.job_id, found.cluster, found.submitted_at)
    texts += (found.code_hash, found.log_path, *found.sets)
    others = (found.after, found.reproduces, found.mark)
    whole = all(isinstance(each, str) for each in texts) and found.job_id.isdecimal()
    return found if whole and all(isinstance(each, str | None) for each in others) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What was submitted from this machine to one cluster."""

    shell: Shell
    outputs: StackOutputs
    state: Path
    code_hash: str
    """Hash of this checkout's code: only submissions of it count."""
    say: Callable[[str], None]

    def submissions(self) -> list[Submission]:
        """What was submitted to this very cluster, newest first."""
        made = submissions(self.state, self.outputs.stack)
        return [each for each in reversed(made) if each.cluster == self.outputs.login_host_key]

    def newest(self, jobs: Sequence[str]) -> list[Submission]:
        """The newest submission of each of these jobs, whatever its settings."""
        made = self.submissions()
        found = (next((each for each in made if each.job == job), None) for job in jobs)
        return [each for each in found if each is not None]

    def alike(self, job: str, sets: Sequence[str]) -> Iterator[tuple[Submission, Job]]:
        """Submissions of the job with this code and these settings that Slurm knows."""
        for each in self.submissions():
            if (each.job, each.code_hash, each.sets) == (job, self.code_hash, tuple(sets)):
                try:
                    known = slurm.find(self.shell, each.job_id)
                except UnknownJobError:
                    # Any other failure says nothing of the job: it may run.
                    known = self._by_record(each)
                if known is not None and known.name == job:
                    yield each, known

    def counting(
        self,
        job: str,
        sets: Sequence[str],
        needed: Sequence[Submission] = (),
        *,
        done_counts: bool = True,
        fits: Callable[[Submission], bool] = lambda _: True,
    ) -> Submission | None:
        """The newest submission that counts, and a line that says so.

        `done_counts`: False for a job that runs for its own sake, such as a server. `fits`: what
        else it must have been asked for.
        """
        oldest = self.oldest(needed)
        for each, known in self.alike(job, sets):
            if int(each.job_id) < oldest or not fits(each):
                continue
            if not known.finished:
                self.say(f"{job}: job {each.job_id} of an earlier run is {known.state}")
                return each
            if done_counts and self.is_done(known):
                self.say(
                    f"{job}: job {each.job_id} did this with the same code and settings; its "
                    "result is used again"
                )
                return each
        return None

    @staticmethod
    def oldest(needed: Sequence[Submission]) -> int:
        """Least id of a job that can have read what the needed ones make."""
        return max((int(each.job_id) for each in needed), default=0)

    def is_done(self, job: Job) -> bool:
        """Whether the job succeeded and its run record is on the cluster."""
        return job.succeeded and self._record(job.id) is not None

    def _by_record(self, made: Submission) -> Job | None:
        """The job by the record that it left, where Slurm forgot it; None: it left none."""
        try:
            found = json.loads(self._record(made.job_id) or "")
            values = (str(found["job_id"]), found["job"], found["code_hash"], found["outcome"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if values != (made.job_id, made.job, made.code_hash, "PASS"):
            return None
        return Job(id=made.job_id, name=made.job, state="COMPLETED", exit_code=0)

    def _record(self, job_id: str) -> str | None:
        """The run record that a job left; None: it left none."""
        places = (each.results_path(job_id) for each in (self.outputs, self.outputs.before))
        found = self.shell.run(
            f"{IS_OWN}for file in {shlex.join(f'{place}/run_record.json' for place in places)}; do "
            '! is_own "${file%/*}" || ! [ -s "$file" ] || exec cat "$file"; done'
        )
        return found.stdout or None

    def still_needed(self, needed: Sequence[Submission]) -> str | None:
        """Ids to wait for, as Slurm takes them; it forgets one that succeeded, so that is none."""
        return ":".join(each.job_id for each in needed if not self._succeeded(each)) or None

    def _succeeded(self, made: Submission) -> bool:
        """Whether it did; one that Slurm forgot is chosen only by its record."""
        try:
            return slurm.find(self.shell, made.job_id).succeeded
        except UnknownJobError:
            return True
