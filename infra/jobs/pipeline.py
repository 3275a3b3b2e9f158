"""Submits a pipeline: each job after those that it needs, and none that is done or on its way.

Owns which jobs are left to submit and what each waits for. Slurm starts a job when all that it
needs succeeded, and cancels it when one did not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infra.jobs.earlier import Earlier
from infra.jobs.errors import JobsError
from infra.jobs.sending import Sent
from infra.jobs.submit import Submission
from stacks.slurm_spec import JobSpec

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
