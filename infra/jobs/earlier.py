"""Earlier submissions that count: the same job, code and settings on the same cluster.

Owns when one counts: it is newer than what it needs, and it still runs or waits, or it is done and
its run record is on the cluster. Anything else is to run again.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.jobs import history, slurm
from infra.jobs.errors import UnknownJobError
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import Job
from infra.jobs.slurm import Shell
from infra.jobs.submit import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What was submitted from this machine to one cluster."""

    shell: Shell
    outputs: StackOutputs
    state: Path
    code_hash: str
    """Code that the cluster runs now."""
    say: Callable[[str], None]

    def submissions(self) -> list[Submission]:
        """What was submitted to this very cluster, newest first."""
        made = history.submissions(self.state, self.outputs.stack)
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
        record = f"{self.outputs.results_path(job.id)}/run_record.json"
        return job.succeeded and self.shell.run(f"test -s {shlex.quote(record)}").ok

    def _by_record(self, made: Submission) -> Job | None:
        """The job by the record that it left, where Slurm forgot it; None: it left none."""
        path = f"{self.outputs.results_path(made.job_id)}/run_record.json"
        try:
            found = json.loads(self.shell.run(f"cat {shlex.quote(path)}").stdout)
            values = (str(found["job_id"]), found["job"], found["code_hash"], found["outcome"])
        except (ValueError, TypeError, KeyError, RecursionError):
            return None
        if values != (made.job_id, made.job, made.code_hash, "PASS"):
            return None
        return Job(id=made.job_id, name=made.job, state="COMPLETED", exit_code=0)

    def still_needed(self, needed: Sequence[Submission]) -> str | None:
        """Ids to wait for, as Slurm takes them; it forgets one that succeeded, so that is none."""
        return ":".join(each.job_id for each in needed if not self._succeeded(each)) or None

    def _succeeded(self, made: Submission) -> bool:
        """Whether it did; one that Slurm forgot is chosen only by its record."""
        try:
            return slurm.find(self.shell, made.job_id).succeeded
        except UnknownJobError:
            return True
