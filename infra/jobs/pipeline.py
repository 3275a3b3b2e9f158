"""A pipeline: which of its jobs are left to submit, in which order, and what each waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from infra.clients.errors import JobsError
from infra.jobs.history import EquivalentJobs, Submission
from infra.jobs.submit import Submitted
from stacks.spec.slurm import JobSpec

Found = Mapping[str, Submission | None]
"""Job -> its equivalent job; None: it is left to submit."""


def find_equivalent(
    jobs: Sequence[JobSpec],
    sets: Mapping[str, Sequence[str]],
    equivalent: EquivalentJobs,
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
    equivalent: EquivalentJobs,
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


def dry_run(
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
