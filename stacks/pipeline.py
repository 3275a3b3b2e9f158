"""Pipelines: what a job needs, what that needs, and so on, as `jobs[].after` declares it.

Owns the order. A pipeline has no name of its own: it is called by the job that it ends with.
    pipeline(spec, "evaluate")  # prepare-data, finetune, evaluate
"""

from __future__ import annotations

from collections.abc import Iterable

from stacks.load import StackError
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec


def pipeline(spec: StackSpec, name: str) -> tuple[JobSpec, ...]:
    """The job and everything that it needs, each after what it needs; `name` is declared."""
    jobs = {job.name: job for job in spec.jobs}
    wanted, found = [name], dict[str, JobSpec]()
    while wanted:
        job = jobs[wanted.pop()]
        if job.name not in found:
            found[job.name] = job
            wanted += [each for each in job.after if each in jobs]
    return in_order(spec.name, (job for job in spec.jobs if job.name in found))


def pipeline_ends(spec: StackSpec) -> tuple[JobSpec, ...]:
    """Jobs that need another one and that no other one needs, in declared order."""
    needed = {name for job in spec.jobs for name in job.after}
    return tuple(job for job in spec.jobs if job.after and job.name not in needed)


def in_order(stack: str, jobs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs, each after those of them that it needs; a circle is refused."""
    left = {job.name: job for job in jobs}
    done: list[JobSpec] = []
    while left:
        ready = [job for job in left.values() if not left.keys() & set(job.after)]
        if not ready:
            raise StackError(
                (f"{stack}: jobs: {', '.join(left)} wait for each other; see `after`",)
            )
        done += ready
        for job in ready:
            del left[job.name]
    return tuple(done)
