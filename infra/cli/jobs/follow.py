"""What runs, waits and ran on a cluster: `status`, `logs`, `top`; and `cancel`, which ends it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from cost.run_record import FILE_NAME
from infra.cli import context, output
from infra.cli.context import IdentityOption, StackOption, arg, opt
from infra.cli.output import Format
from infra.clients import slurm
from infra.clients.errors import StackPausedError, UnknownJobError
from infra.clients.kube import KubeClient
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job
from infra.clients.ssh import Connection
from infra.jobs import follow as job_log
from infra.jobs import history, nodes
from infra.jobs import top as sampler
from infra.jobs.follow import outcome, rest_lines, state_line, waiting_for, why
from infra.jobs.nodes import usage
from infra.jobs.records import read_object
from infra.jobs.top import Screen
from infra.jobs.transfer import LOG_NAME
from infra.providers.soperator.blocked_pods import in_one_line
from infra.state import DEFAULT_STACK
from stacks.errors import UserError
from stacks.schedule import reminders

_CLEAR = "\x1b[2J\x1b[H"


def status(
    job_id: Annotated[str | None, arg("Job id; every job without it.")] = None,
    stack: StackOption = DEFAULT_STACK,
    days: Annotated[int, opt("How far back to look.", min=1)] = 7,
    mine: Annotated[bool, opt("Jobs of the user that enters, as `squeue -u $USER`.")] = False,
    filesystems: Annotated[bool, opt("How full the mounted filesystems are instead.")] = False,
    watch: Annotated[bool, opt("Look again and again until Ctrl-C.")] = False,
    every: Annotated[float, opt("Time between looks of --watch.", "SECONDS", min=1)] = 2.0,
    identity: IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """List the jobs of a cluster, or show one; or how full its filesystems are."""
    outputs = context.caller(stack, identity)
    if (spec := context.spec_here(stack)) is not None:  # its declared end has passed or comes near
        output.note(*reminders(spec, datetime.now(UTC)))
    kube_client = cache(context.kube_client)
    with context.connect(outputs, identity) as connection:
        while True:
            if watch and format is Format.TABLE:
                print(f"{_CLEAR if sys.stdout.isatty() else ''}{datetime.now(UTC):%H:%M:%S} UTC")
            if filesystems:
                _filesystems(connection, outputs, format)
            else:
                jobs = _jobs(connection, outputs, job_id, days, format, mine=mine)
                _not_coming(stack, jobs, kube_client)
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(every)


def _servers(stack: str) -> frozenset[str]:
    """Names of the jobs that serve; none where the stack file is not here."""
    spec = context.spec_here(stack)
    return frozenset(job.name for job in spec.jobs if job.is_server) if spec else frozenset()


def _jobs(
    connection: Connection,
    outputs: StackOutputs,
    job_id: str | None,
    days: int,
    format: Format,
    *,
    mine: bool,
) -> Sequence[Job]:
    """Print the jobs that are asked for, and return them."""
    if job_id is None:
        jobs = slurm.recent(connection, days=days, mine=mine)
    else:
        jobs = (_find(connection, outputs, job_id),)
    stack = outputs.stack
    cluster = outputs.login_host_key
    hours = job_log.forecast_hours(context.state_root(), stack, cluster)
    submissions = history.submissions(context.state_root(), stack)
    names = {each.job_id: each.job for each in submissions if each.cluster == cluster}
    for job in jobs:
        if job.state == slurm.FORGOTTEN:
            output.note(f"job {job.id}: {slurm.FORGOTTEN_MEANS}")
        if job.state != slurm.FORGOTTEN or job.id not in names:  # accounting may lack its name
            names[job.id] = job.name
    jobs = tuple(replace(job, name=names[job.id]) for job in jobs)
    ends = {job.id: job_log.expected(job, hours.get(job.id)) for job in jobs}
    shows_ends = job_id is not None or format is Format.JSON
    servers = _servers(stack) if shows_ends else frozenset[str]()
    if format is Format.JSON:
        output.print_json(
            [
                {
                    **asdict(job),
                    "reason": why(job, names) if job.waits else None,
                    "expected": ends[job.id],
                    "outcome": (end := outcome(job, stack, is_server=job.name in servers))
                    and asdict(end),
                }
                for job in jobs
            ]
        )
        return jobs
    if not jobs:
        output.note(f"{stack}: no jobs in {days} days; start one of: {', '.join(outputs.jobs)}")
        return jobs
    output.print_table(
        ("ID", "JOB", "STATE", "EXIT", "TIME", "STARTED", "WHERE", "EXPECTED"),
        [
            (
                job.id,
                job.name,
                job.state,
                job.exit_code,
                job.elapsed,
                None if job.waits else job.started,
                why(job, names) if job.waits else job.where,
                ends[job.id],
            )
            for job in jobs
        ],
    )
    if job_id is not None and (end := outcome(jobs[0], stack, is_server=jobs[0].name in servers)):
        output.note(end, *rest_lines(jobs[0], submissions, cluster))
    return jobs


def _find(connection: Connection, outputs: StackOutputs, job_id: str) -> Job:
    state = context.state_root()
    return job_log.find(connection, outputs, job_id, state=state, log=output.note)


def _not_coming(stack: str, jobs: Sequence[Job], kube_client: Callable[[str], KubeClient]) -> None:
    """Say why nodes do not come that these jobs wait for."""
    if not any(map(nodes.waits_for_nodes, jobs)):
        return
    spec = context.spec_here(stack)
    if spec is None or spec.attached is not None:
        return
    try:
        found = nodes.not_coming(kube_client(stack), spec, jobs)
    except UserError as error:
        output.note(nodes.not_seen(spec, error))
        return
    if found:
        output.note(in_one_line(found, spec.cluster.namespace))


def _filesystems(connection: Connection, outputs: StackOutputs, format: Format) -> None:
    found = usage(connection, outputs.mounts, are_folders=outputs.attached_key is not None)
    if format is Format.JSON:
        output.print_json([{**asdict(each), "used_percent": each.used_percent} for each in found])
        return
    output.print_table(
        ("MOUNT", "TYPE", "SIZE GIB", "USED GIB", "FREE GIB", "USED", "BEHIND IT"),
        [
            (
                each.path,
                each.kind or "workers only",
                *(
                    None if size is None else f"{size / 2**30:,.1f}"
                    for size in (each.size_bytes, each.used_bytes, each.free_bytes)
                ),
                None if each.used_percent is None else f"{each.used_percent:.0f} %",
                each.what if each.node is None else f"{each.what}; {each.node} was asked",
            )
            for each in found
        ],
    )
    for each in found:
        if each.nearly_full:
            output.note(
                f"{each.path}: {each.used_percent:.0f} % full: remove what no job needs, or raise "
                "its size_gib and run pulumi up"
            )


def logs(
    job_id: Annotated[str, arg("Job id that `soperator submit` printed.")],
    stack: StackOption = DEFAULT_STACK,
    follow: Annotated[
        bool, opt("Go on until the job ends: the default.", "--follow/--no-follow", "-f")
    ] = True,
    identity: IdentityOption = None,
    raw: Annotated[bool, opt("Send a terminal the job's control characters too.")] = False,
) -> None:
    """Follow the log of a job to its end; the exit code is the job's."""
    try:
        outputs = context.caller(stack, identity)
    except StackPausedError as error:
        folder = context.fetched(stack, job_id, error)
        with output.ClusterText(sys.stdout, raw=raw) as shown:
            shown.write((folder / LOG_NAME).read_bytes())
        if follow:
            _end(_as_fetched(folder, job_id), stack)
        return
    with (
        context.connect(outputs, identity) as connection,
        output.ClusterText(sys.stdout, raw=raw) as shown,
    ):
        job = _find(connection, outputs, job_id)
        path = job_log.path_of(connection, outputs, job)
        if not follow:
            job_log.read(connection, path, shown.write)
            return
        try:
            job = job_log.follow(
                connection,
                path,
                job.id,
                write=shown.write,
                on_state=lambda job: output.note(state_line(job)),
                on_look=context.node_watch(stack),
                on_lost=lambda error: output.note(error.trying_again),
            )
        except UnknownJobError:
            # Slurm has forgotten it, before or meanwhile: its record tells how it ended, or nobody.
            job = job if job.finished else _find(connection, outputs, job_id)
            job_log.read(connection, path, shown.write, start=shown.num_bytes)
    _end(job, stack)


def _as_fetched(folder: Path, job_id: str) -> Job:
    """The job as its run record tells its end: a paused stack has no Slurm to ask."""
    record = read_object(folder / FILE_NAME)
    job = job_log.of_record(job_id, record)
    if job is None:
        output.note(
            f"job {job_id}: how it ended is not known here: "
            "no run record was fetched with it; resume the stack to ask Slurm"
        )
        raise typer.Exit(output.NOT_RUN)
    return job


def _end(job: Job, stack: str) -> NoReturn:
    """Says what the job's end means, and ends with its status."""
    end = outcome(job, stack, is_server=job.name in _servers(stack))
    output.note(f"job {job.id}: {end}")
    raise typer.Exit(job.status)


def top(
    job_id: Annotated[str, arg("Id of a running job.")],
    stack: StackOption = DEFAULT_STACK,
    every: Annotated[float, opt("Time between samples.", "SECONDS", min=0.2)] = 2.0,
    samples: Annotated[int, opt("End after so many samples a node; 0: with the job.", min=0)] = 0,
    gate: Annotated[float, opt("Utilisation that is enough, on every GPU.", "PERCENT")] = 80.0,
    memory_gate: Annotated[
        float, opt("Memory in use that is enough, on every GPU.", "PERCENT")
    ] = 50.0,
    identity: IdentityOption = None,
    format: Annotated[Format, opt("How to print.")] = Format.TABLE,
) -> None:
    """Watch utilisation, memory, power and InfiniBand of a job; ends with verdicts on its gates."""
    outputs = context.caller(stack, identity)
    screen = sampler.Screen(gate_percent=gate, memory_gate_percent=memory_gate)
    with context.connect(outputs, identity) as connection:
        job = slurm.find(connection, job_id)
        try:
            for sample in sampler.watch(
                connection, outputs.code_path, job, every_s=every, count=samples
            ):
                screen.take(sample)
                if format is Format.TABLE:
                    _show(screen)
        except KeyboardInterrupt:
            output.note("")
    if format is Format.JSON:
        output.print_json(
            {
                "verdict": screen.verdict,
                "mean_utilization_percent": screen.mean_percent,
                "least_utilization_percent": (screen.each.least_busy or [None])[0],
                "memory_verdict": screen.memory_verdict,
                "least_memory_percent": screen.each.memory_percent,
                "nodes": [asdict(each) for each in screen.newest.values()],
            }
        )
    else:
        print(screen.verdict)
        print(screen.memory_verdict)
    raise typer.Exit(output.exit_code(screen.outcome))


def _show(screen: Screen) -> None:
    if not screen.gpus:
        return
    if sys.stdout.isatty():
        print(_CLEAR, end="")
    output.print_table(("NODE", "GPU", "BUSY", "MEMORY", "POWER"), screen.rows())
    print(f"0 {screen.sparkline()} 100 %", flush=True)


def cancel(
    job_ids: Annotated[list[str], arg("Job ids.")],
    stack: StackOption = DEFAULT_STACK,
    identity: IdentityOption = None,
) -> None:
    """End jobs, running or waiting, and those that wait for their success."""
    for job_id in job_ids:
        slurm.job_id(job_id)
    outputs = context.caller(stack, identity)
    with context.connect(outputs, identity) as connection:
        # scancel is silent about a job that never was, and about one that has ended.
        found = {each: slurm.find(connection, each) for each in job_ids}
        ended = [each for each, job in found.items() if job.finished]
        over = [each for each in ended if not slurm.has_open_tasks(connection, each)]
        running = [each for each in job_ids if each not in over]
        rest = waiting_for(running, slurm.recent(connection, days=1)) if running else ()
        if running:
            slurm.cancel(connection, [*running, *(job.id for job in rest)])
    for job in (found[each] for each in over):
        output.note(f"{job.name} ({job.id}) has ended already: {job.state}")
    if not running:
        return
    for job in rest:
        output.note(f"{job.name} ({job.id}) waits for its success and is ended with it")
    told = ", ".join((*running, *(job.id for job in rest)))
    output.note(f"{stack}: asked to end {told}; see: soperator status -s {stack}")
