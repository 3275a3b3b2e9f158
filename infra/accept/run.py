"""Runs the declared acceptance job: one submission for `quick`, one for each stage in `full`.

Owns which settings and nodes a submission gets (all stages on the nodes of the first: a certificate
is of one set of nodes), and what is said of a stage whose job left no result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.accept import result as results
from infra.accept.errors import AcceptError
from infra.accept.result import Profile, Result
from infra.jobs import logs
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import Job
from infra.jobs.pull import pull
from infra.jobs.ssh import Connection
from infra.jobs.submit import Submission
from stacks.slurm_spec import ACCEPT_MODULE, JobSpec
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The stages of one submission."""

    stages: tuple[str, ...]
    sets: tuple[str, ...]


def accept_job(spec: StackSpec) -> JobSpec:
    """The stack's acceptance; refused with the line to declare where there is none."""
    for job in spec.jobs:
        if job.is_acceptance:
            return job
    raise AcceptError(
        f"{spec.name}: jobs: no acceptance; declare one, such as {{name: accept, module: "
        f"{ACCEPT_MODULE}, recipe: accept_gpu, nodes: 2, gpus_per_node: 8}}, and run "
        f"`pulumi up --stack {spec.name}`"
    )


def chosen_stages(text: str | None) -> tuple[str, ...]:
    """The stages in `readiness,training`, in their own order; None is all."""
    if text is None:
        return results.STAGES
    asked = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in asked if each not in results.STAGES]
    if unknown or not asked:
        raise AcceptError(
            f"--stages {text}: {', '.join(unknown) or 'nothing'} is no stage (has: "
            f"{', '.join(results.STAGES)})"
        )
    return tuple(stage for stage in results.STAGES if stage in asked)


def batches(
    profile: Profile, stages: Sequence[str], sets: Sequence[str], mounts: Sequence[str] = ()
) -> tuple[Batch, ...]:
    """What is submitted, in order; the given settings come last, so they win.

    `mounts` are the stack's shared ones, of which a recipe knows the named places only.
    """
    groups = [tuple(stages)] if profile is Profile.QUICK else [(stage,) for stage in stages]
    found: list[Batch] = []
    for group in groups:
        names = ", ".join(f'"{stage}"' for stage in group)
        own = [f"accept.profile={profile}", f"accept.stages=[{names}]"]
        if mounts and "storage" in group:
            own.append(f"accept.storage.mounts={json.dumps(list(mounts))}")
        found.append(Batch(stages=group, sets=(*own, *sets)))
    return tuple(found)


def collect(
    connection: Connection,
    outputs: StackOutputs,
    wanted: Sequence[Batch],
    submit: Callable[[Batch, tuple[str, ...]], Submission],
    *,
    state: Path,
    write: Callable[[bytes], None],
    say: Callable[[str], None],
) -> Result:
    """The results of all batches as one, once each has ended; followed in their order.

    `submit` gets the nodes that a batch must have: none for the first, whose nodes all others get.
    """
    found: list[Result] = []
    missing: dict[str, str] = {}
    nodes: tuple[str, ...] = ()
    waiting = list(wanted)
    while waiting:
        now, waiting = (waiting, []) if nodes else (waiting[:1], waiting[1:])
        submitted: list[tuple[Batch, Submission]] = []
        for batch in now:
            try:
                submitted.append((batch, submit(batch, nodes)))
            except JobsError as error:
                if not found:
                    raise
                missing |= dict.fromkeys(batch.stages, f"not submitted: {error}")
        for batch, submission in submitted:
            say(f"{', '.join(batch.stages)}: job {submission.job_id}")
            ended = logs.follow(
                connection,
                submission.log_path,
                submission.job_id,
                write=write,
                on_state=lambda job: say(f"job {job.id} is {job.state}"),
            )
            result = None
            try:
                folder = pull(connection, outputs, submission.job, submission.job_id, state=state)
                path = folder / results.FILE_NAME
                result = results.read(path) if path.exists() else None
            except (JobsError, AcceptError) as error:
                # What the other jobs measured is not lost with what one of them left.
                say(f"job {submission.job_id}: {error}")
            if result is not None:
                found.append(result)
                nodes = nodes or tuple(str(node["name"]) for node in result.nodes)
            missing |= gaps(batch.stages, result, ended)
    return results.merge(found, missing)


def gaps(stages: Sequence[str], result: Result | None, ended: Job) -> dict[str, str]:
    """Why stages have no check: their job ended before them."""
    asked = set() if result is None else {check.stage for check in result.checks}
    status = "" if ended.status is None else f", exit {ended.status}"
    what = "left no result" if result is None else "ended before it"
    why = f"job {ended.id} {what}: {ended.state}{status}; see `soperator logs {ended.id}`"
    return {stage: why for stage in stages if stage not in asked}
