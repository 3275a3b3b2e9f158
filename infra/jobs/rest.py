"""The rest of a pipeline when one of its jobs ends without success: who needed it, and the way on.

Slurm cancels what can never start. Owns who that is, from the queue or from what was submitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.jobs.parse import Job
from infra.jobs.submit import Submission


def waiting_for(ids: Sequence[str], jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Jobs of the queue that wait for the success of these, or of such a job; oldest first."""
    gone, rest = set(ids), list[Job]()
    waiting = [job for job in jobs if job.waits]
    # A job is submitted after what it needs, so one pass in the order of ids finds all.
    for job in sorted(waiting, key=lambda each: int(each.id.split("_")[0])):
        if job.id not in gone and gone.intersection(job.needs):
            gone.add(job.id)
            rest.append(job)
    return tuple(rest)


def rest_lines(job: Job, submissions: Sequence[Submission], cluster: str) -> tuple[str, ...]:
    """What the end of the job means for those that needed it, as submitted from this machine."""
    made = {each.job_id: each for each in submissions if each.cluster == cluster}
    if job.succeeded or job.id not in made:
        return ()
    lines: list[str] = []
    own = made[job.id]
    if job.state == "CANCELLED" and own.after and job.where is None:  # no node: it never started
        needed = [
            f"{made[each].job} ({each})" if each in made else f"job {each}"
            for each in own.after.split(":")
        ]
        lines.append(
            f"it was to start once {' and '.join(needed)} succeeded: where one did not, Slurm "
            "cancelled it; soperator status of that one says why"
        )
    gone, last = {job.id}, None
    for each in sorted(made.values(), key=lambda one: int(one.job_id)):
        if each.after and gone.intersection(each.after.split(":")):
            gone.add(each.job_id)
            last = each
            lines.append(f"{each.job} ({each.job_id}) needed it and does not run")
    if last is not None:
        lines.append(
            "once it is mended, this submits what is not done: "
            f"soperator submit {last.job} --pipeline -s {last.stack}"
        )
    return tuple(lines)
