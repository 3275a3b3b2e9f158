"""Serves the tuned model of one fine-tune, puts it under load, and ends the server.

Owns that the demo has one server at most: one that a killed run left is used again where it serves
what is wanted, and ended where it does not.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from infra import files
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.jobs.history import Submission
from infra.jobs.records import read_object
from infra.jobs.server import job_settings, wait_until_up
from infra.setup.demo.runner import Runner, Step
from stacks.errors import UserError
from stacks.spec import StackSpec
from stacks.spec.slurm import LOAD_MODULE, SERVE_MODULE, TRAIN_MODULE, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The jobs of a stack that the demo serves with."""

    tune: JobSpec
    """Its adapter is served."""
    server: JobSpec
    load: JobSpec


def roles(spec: StackSpec) -> Roles:
    """The first job of each kind; a stack without one is refused before anything is made."""
    modules = (TRAIN_MODULE, SERVE_MODULE, LOAD_MODULE)
    found = {module: [job for job in spec.jobs if job.module == module] for module in modules}
    missing = [module for module in modules if not found[module]]
    if missing:
        raise UserError(f"{spec.name}: jobs: the demo needs a job of {' and of '.join(missing)}")
    tune, server, load = (found[module][0] for module in modules)
    return Roles(tune=tune, server=server, load=load)


def serve_and_load(
    runner: Runner, tuned: Step, settings: Mapping[str, tuple[str, ...]]
) -> dict[str, Step]:
    """The ended server and the load test that it answered, by job name; settings are by job."""
    found = roles(runner.spec)
    server, load = found.server, found.load
    # Any free port: the declared one may be a server's that a person runs on this machine.
    own = (f"serve.adapter={_adapter(tuned)}", "serve.port=0")
    mark = ServerMark(
        job=server.name,
        code_hash=runner.code_hash,
        sets=(*own, *settings.get(server.name, ())),
    )
    _end_another(runner, mark)
    load_settings = settings.get(load.name, ())
    with runner.alone():
        earlier = _earlier(runner, server, load, mark, load_settings)
        if earlier is None:
            write(runner.state, mark)
        serving = earlier[0] if earlier is not None else runner.start(server, mark.sets)
    try:
        # One that has ended was measured.
        is_measured = earlier is not None and earlier[1].finished
        job = earlier[1] if earlier and is_measured else _wait_until_healthy(runner, serving)
        loaded = _load(runner, load, _load_sets(runner, job, load_settings))
    except BaseException:
        # Ctrl-C too: a server takes its node for hours.
        with contextlib.suppress(JobsError):
            slurm.cancel(runner.connection, [serving.job_id])
        raise
    return {server.name: _end(runner, serving, reused=earlier is not None), load.name: loaded}


def _adapter(tuned: Step) -> str:
    """Where the cluster keeps the adapter that this very fine-tune wrote."""
    adapter = read_object(tuned.folder / "run_record.json").get("artifacts", {}).get("adapter_dir")
    if not adapter:
        raise UserError(
            f"{tuned.job.name} (job {tuned.job.id}): its record in {tuned.folder} names no "
            "adapter_dir; the demo serves a LoRA adapter, so set train.method=lora"
        )
    return str(adapter)


def _end_another(runner: Runner, mark: ServerMark) -> None:
    """Ends the demo's server of an earlier run that serves something else."""
    left = read(runner.state)
    if left is None or left == mark:
        return
    for each in runner.submissions():
        if left.fits(each):
            with contextlib.suppress(JobsError):
                if not slurm.find(runner.connection, each.job_id).finished:
                    runner.log(f"{each.job}: job {each.job_id} of an earlier run serves another")
                    slurm.cancel(runner.connection, [each.job_id])
                    runner.follow(each)
    remove(runner.state)


def _earlier(
    runner: Runner, server: JobSpec, load: JobSpec, mark: ServerMark, load_settings: tuple[str, ...]
) -> tuple[Submission, Job] | None:
    """A server of these settings that runs, or that ended after its load test was measured."""
    for each, job in runner.of(server.name, mark.sets):
        if not job.finished:
            runner.log(f"{server.name}: job {each.job_id} of an earlier run is {job.state}")
            return each, job
        sets = _load_sets(runner, job, load_settings)
        measured = runner.of(load.name, sets)
        if any(runner.is_done(loaded) for _, loaded in measured):
            runner.log(f"{server.name}: job {each.job_id} served this and was measured")
            return each, job
    return None


def _load(runner: Runner, load: JobSpec, sets: tuple[str, ...]) -> Step:
    """The load test at its end; one that an earlier run submitted counts."""
    with runner.alone():
        earlier = runner.find(load.name, sets)
        found = earlier or runner.start(load, sets)
    return runner.finish(found, reused=earlier is not None)


def _load_sets(runner: Runner, server: Job, load_settings: tuple[str, ...]) -> tuple[str, ...]:
    return (*job_settings(runner.spec, server), *load_settings)


def _wait_until_healthy(runner: Runner, serving: Submission) -> Job:
    """The running server once it answers; one that ends before that is an error."""
    connection, number = runner.connection, serving.job_id
    address = wait_until_up(connection, runner.outputs, number, log=runner.log)
    job = slurm.find(connection, number)
    names = " and ".join(address.models)
    runner.log(f"{job.name}: job {number} serves {names} on {job.where}")
    return job


def _end(runner: Runner, serving: Submission, *, reused: bool) -> Step:
    """The server told to stop, at its end and pulled; one that ended badly is an error."""
    if not slurm.find(runner.connection, serving.job_id).finished:
        slurm.cancel(runner.connection, [serving.job_id])
    job = runner.follow(serving)
    folder = runner.pull(serving)
    outcome = read_object(folder / "run_record.json").get("outcome")
    # Slurm calls it cancelled, however well it ended: the record knows.
    if outcome != "PASS":
        raise UserError(f"its record says {outcome}: {runner.failure(serving, job)}")
    remove(runner.state)
    return Step(job=job, reused=reused, folder=folder)


class ServerMark(NamedTuple):
    """What tells the demo's server among all submissions of one cluster."""

    job: str
    code_hash: str
    sets: tuple[str, ...]

    def fits(self, submission: Submission) -> bool:
        """Whether the demo submitted this one."""
        return (submission.job, submission.code_hash, submission.sets) == self


def write(state: Path, mark: ServerMark) -> None:
    """Writes the mark down, whole."""
    files.write(_path(state), json.dumps(mark._asdict()))


def read(state: Path) -> ServerMark | None:
    """The mark of an earlier run; a damaged file is as good as none."""
    try:
        values = json.loads(_path(state).read_text(encoding="utf-8"))
        return ServerMark(**{**values, "sets": tuple(values["sets"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def remove(state: Path) -> None:
    """Forgets the server: it has ended."""
    _path(state).unlink(missing_ok=True)


def _path(state: Path) -> Path:
    return state / "demo" / "server.json"
