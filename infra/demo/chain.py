"""Runs the jobs of a stack that end, each after those it needs; what is done stays done.

Whether an earlier job counts is in infra/jobs/earlier.py; the server and its load test: serving.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.demo.runner import Runner, Step
from infra.jobs.submit import Submission
from stacks import pipeline
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec


def run(runner: Runner, settings: Mapping[str, tuple[str, ...]]) -> dict[str, Step]:
    """Every such job to its end, by name; the first failure ends it. Settings are by job."""
    chosen: dict[str, Submission] = {}
    reused: set[str] = set()
    with runner.alone():
        for job in in_order(runner.spec):
            sets = settings.get(job.name, ())
            needed = [chosen[name] for name in job.after if name in chosen]
            earlier = runner.earlier.counting(job.name, sets, needed)
            if earlier is not None:
                reused.add(job.name)
                chosen[job.name] = earlier
            else:
                after = runner.earlier.still_needed(needed)
                chosen[job.name] = runner.submit(job, sets, after)
    return {name: runner.finish(each, reused=name in reused) for name, each in chosen.items()}


def in_order(spec: StackSpec) -> tuple[JobSpec, ...]:
    """The jobs of the chain, each after those it needs; a circle is refused."""
    return pipeline.in_order(
        spec.name,
        (job for job in spec.jobs if job.ends),
    )
