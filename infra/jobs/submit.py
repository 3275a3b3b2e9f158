"""Submits one declared job: refuses unknown names and stale code, then runs sbatch.

Owns the meaning of a submission. Settings are checked by the workload, whose recipe knows them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches

from infra.jobs import mark as marks
from infra.jobs import parse, prepared_data
from infra.jobs import plan as plans
from infra.jobs import run_config as run_configs
from infra.jobs.errors import JobsError, NotSubmittedError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell, dependency, refused, sbatch_command
from infra.render.sbatch import RELEASE_VARIABLE

_STALE_EXIT = 75
_MOST_BYTES = 128 * 1024 - 1
"""sshd gives the command to a shell as one argument: execve(2), MAX_ARG_STRLEN with its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One accepted job and what it was made of."""

    stack: str
    job: str
    job_id: str
    code_hash: str
    sets: tuple[str, ...]
    after: str | None
    """Ids that it was told to wait for, as Slurm takes them: `11` or `11:12`."""
    log_path: str
    submitted_at: str
    """UTC, ISO 8601."""
    cluster: str
    """Host key of the login node: job ids start again at 1 on a cluster that was made anew."""
    reproduces: str | None = None
    """The run that it repeats; None for a run of its own."""
    mark: str | None = None
    """Comment of the job in Slurm, by mark.py; None: it was submitted without one."""


class AlreadyQueuedError(JobsError):
    """A job of equal inputs runs or waits, whoever submitted it: nothing was submitted."""

    def __init__(self, job: str, job_id: str, mark: str) -> None:
        super().__init__(f"{job}: job {job_id} of the same code and settings runs or waits")
        self.job_id = job_id
        self.mark = mark


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """What one task of an array gets for itself."""

    plan: bytes | None = None
    run_config: str | None = None


def submit(
    shell: Shell,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    git_revision: str | None = None,
    plan: bytes | None = None,
    run_config: str | None = None,
    nodes: Sequence[str] = (),
    tasks: Mapping[int, TaskFiles] | None = None,
    array: str | None = None,
    reads: Sequence[tuple[str, ...]] = (),
    mark: str | None = None,
    once_from: int | None = None,
) -> Submission:
    """Submits `job` if the cluster runs exactly the code `code_hash`; one round trip.

    `run_config`: bucket and key of what it is configured by; `nodes`: what it must run on;
    `tasks`: the same by number of an array's task, and `array`: which of them; None: all.
    `reads`: groups of paths; one of each must be there, unless it waits for a job that may make it.
    `mark`: its comment; a job of equal inputs with the id `once_from` or a later one, which runs or
    waits, is raised instead.
    """
    check_job(outputs, job)
    own = TaskFiles(plan=plan, run_config=run_config)
    export = environment(outputs, code_hash, git_revision=git_revision, own=own, tasks=tasks)
    every = (own, *(tasks or {}).values())
    installed = dict.fromkeys(each.plan for each in every if each.plan is not None)
    install = ""
    if installed:
        install = f"{plans.install_script(outputs.code_path, tuple(installed))} && "
    sbatch = sbatch_command(
        f"jobs/{job}",
        job_args(sets),
        after=after,
        export=export,
        nodes=nodes,
        array=array,
        comment=mark,
    )
    turn = "" if mark is None else marks.turn_script(outputs.code_path, mark, once_from=once_from)
    needs = prepared_data.refuse_script(reads if after is None else (), outputs.places)
    command = (
        f"cd {shlex.quote(outputs.code_path)} && release=$(readlink current) && "
        f'if [ "${{release##*/}}" != {code_hash} ]; then echo "${{release##*/}}"; '
        f"cat > /dev/null; exit {_STALE_EXIT}; fi; {needs}{turn}{install}exec {sbatch}"
    )
    if len(command.encode()) > _MOST_BYTES:
        raise NotSubmittedError(
            f"{job}: {len(every) - 1} tasks make a command of {len(command.encode()):,} bytes, and "
            f"the login node takes {_MOST_BYTES:,}; nothing was submitted: declare two searches "
            "with fewer trials each"
        )
    result = shell.run(command, stdin=b"".join(installed))
    if result.exit_code == _STALE_EXIT:
        # With the deployed code back in the checkout, `pulumi up` sees no change to make.
        up = f"run `pulumi up --stack {outputs.stack}`, or "
        raise NotSubmittedError(
            f"{job}: the cluster has code {result.stdout.strip()}, this checkout is {code_hash}; "
            f"{'' if code_hash == outputs.code_hash else up}submit with --sync to send it now"
        )
    if needs and result.exit_code == prepared_data.EXIT:
        raise NotSubmittedError(prepared_data.refusal(job, result.stdout.strip()))
    if mark is not None and result.exit_code == marks.QUEUED_EXIT:
        number, _, comment = result.stdout.strip().partition("|")
        raise AlreadyQueuedError(job, number, comment)
    if mark is not None and result.exit_code == marks.BUSY_EXIT:
        why = marks.why_busy(result.stderr)
        raise NotSubmittedError(f"{job}: {why}; nothing was submitted: try again")
    if not result.ok:
        raise refused(f"{job}: sbatch", result)
    number = parse.submitted_id(result.stdout)
    return Submission(
        stack=outputs.stack,
        job=job,
        job_id=number,
        code_hash=code_hash,
        sets=tuple(sets),
        after=after,
        log_path=outputs.log_path(job, number),
        submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=outputs.login_host_key,
        mark=mark,
    )


def environment(
    outputs: StackOutputs,
    code_hash: str,
    *,
    git_revision: str | None,
    own: TaskFiles,
    tasks: Mapping[int, TaskFiles] | None = None,
) -> list[str]:
    """Variables that a job is submitted with, NAME=VALUE each."""
    found = [f"{RELEASE_VARIABLE}={code_hash}"]
    found += [f"SOPERATOR_GIT_REVISION={git_revision}"] if git_revision else []
    files = {"": own, **{f"_{number}": each for number, each in (tasks or {}).items()}}
    for suffix, each in files.items():
        if each.run_config:
            found.append(f"{run_configs.VARIABLE}{suffix}={each.run_config}")
        if each.plan is not None:
            path = plans.path_on_cluster(outputs.code_path, each.plan)
            found.append(f"{plans.VARIABLE}{suffix}={path}")
    return found


def dry_run(
    shell: Shell,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    exported: Sequence[str],
    sets: Sequence[str] = (),
    after: str | None = None,
    array: str | None = None,
) -> str:
    """What would be submitted and when Slurm would start it; nothing is queued.

    `exported`: variables of `environment`. `after` is only shown: of a job that is not submitted
    yet it has no id. Code that `submit` refuses is said.
    """
    check_job(outputs, job)
    script = f"jobs/{job}"
    options = [] if after is None else dependency(after)
    options += [] if array is None else [f"--array={array}"]
    options.append(f"--export={','.join(['ALL', *exported])}")
    shown = shlex.join(["sbatch", "--parsable", *options, script, *job_args(sets)])
    asked = sbatch_command(script, job_args(sets), array=array, test_only=True)
    result = shell.run(
        f"cd {shlex.quote(outputs.code_path)} && readlink current && cat {script} && {asked}"
    )
    if not result.ok:
        raise refused(f"{job}: sbatch --test-only", result)
    release, _, text = result.stdout.partition("\n")
    stale = ""
    if (deployed := release.rpartition("/")[2]) != code_hash:
        stale = (
            f"# The cluster has code {deployed}, this checkout is {code_hash}: the script below is "
            "the cluster's, and submit refuses without --sync or pulumi up.\n"
        )
    return f"# {shown}\n# {result.stderr.strip()}\n{stale}{text}"


def check_job(outputs: StackOutputs, job: str) -> None:
    """Refuses a job that the stack does not declare, with the nearest name."""
    if job in outputs.jobs:
        return
    near = get_close_matches(job, outputs.jobs, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    have = ", ".join(sorted(outputs.jobs))
    raise JobsError(f"{outputs.stack}: jobs: {job!r} is not declared{hint} (has: {have})")


def job_args(sets: Sequence[str]) -> list[str]:
    """`--set key=value` for each setting; a setting without `=` is refused."""
    wrong = [each for each in sets if "=" not in each or each.startswith("=")]
    if wrong:
        raise JobsError(
            f"--set {' '.join(wrong)}: not key=value; write for example --set train.max_steps=8"
        )
    return [word for each in sets for word in ("--set", each)]
