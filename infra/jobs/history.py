"""Submissions made from this machine, and which of them an equal one need not repeat.

Of a pipeline: which of its jobs are left to submit, in which order, and what each waits for.
Files: `<state>/runs/<stack>/<job id>/submission.json`. A submission says what was asked for, a run
record what came of it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from infra import files
from infra.clients import slurm
from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.slurm import Job, Shell
from infra.jobs.records import parse_object
from stacks.files import read_text
from stacks.spec.slurm import JobSpec

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs

SUBMISSION: Final = "submission.json"
_ID: Final = re.compile(r"[0-9]{1,18}")
IS_OWN: Final = """
is_own() { { stat -c %u -- "${1%/*}"; id -u; } | grep -qx "$(stat -c %u -- "$1")"; } 2> /dev/null
"""
"""Shell function: whether a file is its folder's owner's or the caller's. Everybody wrote into the
places once: what lies there may be a neighbour's, by the name of a job that was to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One accepted job and what it was made of."""

    stack: str
    job: str
    job_id: str
    """Empty until Slurm has numbered it."""
    code_hash: str
    sets: tuple[str, ...]
    after: str | None
    """Ids of the jobs whose success it waits for, as Slurm takes them: `11` or `11:12`."""
    log_path: str
    submitted_at: str
    """UTC, ISO 8601."""
    cluster: str
    """Host key of the login node: job ids start again at 1 on a cluster that was made anew."""
    reproduces: str | None = None
    """The run that it repeats; None for a run of its own."""
    idempotency_key: str | None = None
    """Comment of the job in Slurm; None: it was submitted without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The job of a request."""

    submission: Submission
    is_equivalent: bool
    """Whether it had been submitted before."""


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


def submissions(state: Path, stack: str, cluster: str | None = None) -> tuple[Submission, ...]:
    """Submissions to this stack, or to this very cluster of it, oldest first."""
    paths = (state / "runs" / stack).glob(f"*/{SUBMISSION}")
    found = [each for path in paths if (each := read_submission(path)) is not None]
    if cluster is not None:
        found = [each for each in found if each.cluster == cluster]
    return tuple(sorted(found, key=lambda each: (each.submitted_at, int(each.job_id))))


def damaged(state: Path, stack: str) -> tuple[Path, ...]:
    """Files of submissions to this stack that cannot be read any more."""
    found = sorted((state / "runs" / stack).glob(f"*/{SUBMISSION}"))
    return tuple(path for path in found if read_submission(path) is None)


def read_submission(path: Path) -> Submission | None:
    """The submission in the file; a damaged one is as good as none."""
    try:
        found = submission_from(json.loads(read_text(path)))
    except (OSError, ValueError, RecursionError):
        return None
    return found if found is not None and _ID.fullmatch(found.job_id) else None


def submission_from(values: Mapping[str, Any]) -> Submission | None:
    """The submission of these values; None where they are not those of one."""
    try:
        # Written as `mark` until 2026-11-24.
        keys = {("idempotency_key" if key == "mark" else key): values[key] for key in values}
        found = Submission(**{**keys, "sets": tuple(keys["sets"])})
    except (TypeError, KeyError):
        return None
    texts = (found.stack, found.job, found.job_id, found.cluster, found.submitted_at)
    texts += (found.code_hash, found.log_path, *found.sets)
    others = (found.after, found.reproduces, found.idempotency_key)
    whole = all(isinstance(each, str) for each in texts)
    return found if whole and all(isinstance(each, str | None) for each in others) else None


@dataclass(frozen=True, kw_only=True)
class SubmittedJobs:
    """Jobs submitted from this machine to one cluster, and which count for one code."""

    connection: Shell
    outputs: StackOutputs
    state: Path
    log: Callable[[str], None]
    code_hash: str = ""
    """Of what is submitted anew; empty where nothing is."""

    def submissions(self) -> tuple[Submission, ...]:
        """What was submitted to this very cluster, newest first."""
        return submissions(self.state, self.outputs.stack, self.outputs.login_host_key)[::-1]

    def newest(self, jobs: Sequence[str]) -> list[Submission]:
        """The newest submission of each of these jobs, whatever its code and settings."""
        made = self.submissions()
        found = (next((each for each in made if each.job == job), None) for job in jobs)
        return [each for each in found if each is not None]

    def of(self, job: str, sets: Sequence[str]) -> Iterator[tuple[Submission, Job]]:
        """Submissions of the job with this code and these settings, with the job as it is now."""
        for each in self.submissions():
            if (each.job, each.code_hash, each.sets) == (job, self.code_hash, tuple(sets)):
                try:
                    known = slurm.find(self.connection, each.job_id)
                except UnknownJobError:
                    # Any other failure says nothing of the job: it may run.
                    known = self._by_record(each)
                if known is not None and known.name == job:
                    yield each, known

    def find(
        self,
        job: str,
        sets: Sequence[str],
        needed: Sequence[Submission] = (),
        *,
        may_be_done: bool = True,
        fits: Callable[[Submission], bool] = lambda _: True,
    ) -> Submission | None:
        """The newest equivalent job that waits, runs or is done; None: submit it.

        `needed`: what it must have been submitted after. `may_be_done`: False for a job that runs
        for its own sake, such as a server. `fits`: what else must be equal.
        """
        oldest = oldest_id(needed)
        for each, known in self.of(job, sets):
            if int(each.job_id) < oldest or not fits(each):
                continue
            if not known.finished:
                held = held_text(each, known.where) if known.waits else ""
                self.log(f"{job}: job {each.job_id} of an earlier run is {held or known.state}")
                return each
            if may_be_done and self.is_done(known):
                self.log(
                    f"{job}: job {each.job_id} did this with the same code and settings; its "
                    "result is used again"
                )
                return each
        return None

    def is_done(self, job: Job) -> bool:
        """Whether the job succeeded and its run record is on the cluster."""
        return job.succeeded and self._record(job.id) is not None

    def unfinished(self, needed: Sequence[Submission]) -> str | None:
        """Ids of those to wait for, as Slurm takes them; None: all of them succeeded."""
        return ":".join(each.job_id for each in needed if not self._succeeded(each)) or None

    def _succeeded(self, made: Submission) -> bool:
        """Whether it did; one that Slurm forgot is chosen only by its record."""
        try:
            return slurm.find(self.connection, made.job_id).succeeded
        except UnknownJobError:
            return True

    def _by_record(self, made: Submission) -> Job | None:
        """The job by the record that it left, where Slurm forgot it; None: it left none."""
        found = parse_object(self._record(made.job_id) or "")
        values = [found.get(key) for key in ("job", "code_hash", "outcome")]
        if [str(found.get("job_id")), *values] != [made.job_id, made.job, made.code_hash, "PASS"]:
            return None
        return Job(id=made.job_id, name=made.job, state="COMPLETED", exit_code=0)

    def _record(self, job_id: str) -> str | None:
        """The run record that a job left; None: it left none."""
        places = (each.results_path(job_id) for each in (self.outputs, self.outputs.before))
        found = self.connection.run(
            f"{IS_OWN}for file in {shlex.join(f'{place}/run_record.json' for place in places)}; do "
            '! is_own "${file%/*}" || ! [ -s "$file" ] || exec cat "$file"; done'
        )
        return found.stdout or None


def held_text(made: Submission, reason: str | None) -> str:
    """That somebody has to let the waiting job go; empty where it waits for anything else."""
    is_held = re.search("[hH]eld|Hold", reason or "")
    how = f"soperator status {made.job_id} -s {made.stack} says how"
    return f"held ({reason}) and starts once it is let go: {how}" if is_held else ""


def oldest_id(needed: Sequence[Submission]) -> int:
    """Least id of a job that can have read what the needed ones make."""
    return max((int(each.job_id) for each in needed), default=0)


Found = Mapping[str, Submission | None]
"""Job -> its equivalent job; None: it is left to submit."""


def find_equivalent(
    jobs: Sequence[JobSpec],
    sets: Mapping[str, Sequence[str]],
    equivalent: SubmittedJobs,
    *,
    again: bool = False,
    fits: Callable[[Submission], bool] = lambda _: True,
) -> Found:
    """What need not be submitted; nothing after a job that is left, or where all are `again`."""
    found: dict[str, Submission | None] = {}
    for job in jobs:
        inside = [found[name] for name in job.after if name in found]
        needed = [each for each in inside if each is not None]
        needed += equivalent.newest([name for name in job.after if name not in found])
        found[job.name] = None
        if not again and None not in inside:
            own = sets.get(job.name, ())
            found[job.name] = equivalent.find(
                job.name, own, needed, may_be_done=job.ends, fits=fits
            )
    return found


def submit_pipeline(
    jobs: Sequence[JobSpec],
    found: Found,
    equivalent: SubmittedJobs,
    submit: Callable[[JobSpec, str | None], Submitted],
    *,
    after: str | None = None,
) -> tuple[Submitted, ...]:
    """Every job that is left, in order; those that need none of them wait for `after` as well."""
    chosen: dict[str, Submitted] = {}
    for job in jobs:
        if (known := found[job.name]) is not None:
            chosen[job.name] = Submitted(submission=known, is_equivalent=True)
            continue
        needed = [chosen[name].submission for name in job.after if name in chosen]
        waits = [equivalent.unfinished(needed), after if _is_first(job, found) else None]
        chosen[job.name] = submit(job, ":".join(each for each in waits if each is not None) or None)
    return tuple(chosen.values())


def pipeline_text(
    jobs: Sequence[JobSpec],
    found: Found,
    show: Callable[[JobSpec, str | None], str],
    *,
    after: str | None = None,
) -> str:
    """Every sbatch that `submit_pipeline` would make; ids that are not known yet stand as $NAME."""
    texts: list[str] = []
    for job in jobs:
        if (known := found[job.name]) is not None:
            texts.append(f"# {job.name}: job {known.job_id} counts; it is not submitted again\n")
            continue
        needed = [(name, found[name]) for name in job.after if name in found]
        ids = [
            f"${name.upper().replace('-', '_')}" if of is None else of.job_id for name, of in needed
        ]
        ids += [after] if after is not None and _is_first(job, found) else []
        texts.append(show(job, ":".join(ids) or None))
    return "\n".join(texts)


def _is_first(job: JobSpec, found: Found) -> bool:
    """Whether nothing that it needs is submitted with it."""
    return all(found[name] is not None for name in job.after if name in found)


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
