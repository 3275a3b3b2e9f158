"""Runs the jobs of a stack that end, each after the one it needs; what is done stays done.

Whether an earlier job counts is in runner.py; the server and its load test are in serving.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from infra.cli.errors import CliError
from infra.demo.runner import Runner, Step
from infra.jobs import slurm
from infra.jobs.submit import Submission
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec


def run(runner: Runner, settings: Mapping[str, tuple[str, ...]]) -> dict[str, Step]:
    """Every such job to its end, by name; the first failure ends it. Settings are by job."""
    runner.adopt()
    chosen: dict[str, Submission] = {}
    reused: set[str] = set()
    for job in in_order(runner.spec):
        sets = settings.get(job.name, ())
        needed = chosen.get(job.after or "")
        earlier = runner.earlier(job, sets, needed)
        if earlier is not None:
            reused.add(job.name)
        chosen[job.name] = earlier or runner.submit(job, sets, _running(runner, needed))
    return {name: runner.finish(each, reused=name in reused) for name, each in chosen.items()}


def in_order(spec: StackSpec) -> list[JobSpec]:
    """The jobs of the chain, each after the one it needs; a circle is refused."""
    left = {
        job.name: job
        for job in spec.jobs
        if not (job.is_server or job.is_load_test or job.is_acceptance)
    }
    done: list[JobSpec] = []
    while left:
        ready = [job for job in left.values() if job.after not in left]
        if not ready:
            raise CliError(f"{spec.name}: jobs: {', '.join(left)} wait for each other; see `after`")
        done += ready
        for job in ready:
            del left[job.name]
    return done


def _running(runner: Runner, needed: Submission | None) -> str | None:
    """Id of the job to wait for; Slurm forgets one that succeeded, so that one is not named."""
    if needed is None or slurm.find(runner.connection, needed.job_id).succeeded:
        return None
    return needed.job_id
