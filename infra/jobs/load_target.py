"""Which server `soperator load` measures, and what the job must know of it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from infra.jobs.errors import JobsError
from infra.jobs.parse import Job
from infra.jobs.submit import job_args
from stacks.node_spec import WorkerSpec
from stacks.slurm_spec import LOAD_MODULE, JobSpec
from stacks.spec import StackSpec


def load_job(spec: StackSpec) -> JobSpec:
    """The stack's load test; refused with the line to declare where there is none."""
    for job in spec.jobs:
        if job.is_load_test:
            return job
    raise JobsError(
        f"{spec.name}: jobs: no load test; declare one, such as {{name: load, module: "
        f"{LOAD_MODULE}, recipe: smollm2_135m_load_cpu}}, and run `pulumi up --stack {spec.name}`"
    )


def choose(spec: StackSpec, jobs: Iterable[Job], wanted: str | None) -> Job:
    """The given job, or the newest server that runs; what is no running server is refused."""
    servers = {job.name for job in spec.jobs if job.is_server}
    found = list(jobs)
    running = [job for job in found if job.name in servers and job.state == "RUNNING"]
    if running:
        return max(running, key=lambda job: int(job.id.split("_")[0]))
    if wanted is not None and found:
        job = found[0]
        what = f"{job.name}, {job.state}"
        raise JobsError(f"job {job.id} is {what}; a load test needs a running server job")
    names = " or ".join(sorted(servers)) or "a job with module workloads.serve"
    raise JobsError(
        f"{spec.name}: no server runs; submit {names} and wait until it is up, or give --url"
    )


def job_settings(spec: StackSpec, server: Job) -> list[str]:
    """Where the server is, and on what: cost/ takes speeds of the same preset only."""
    settings = [f"load.target.serve_job={json.dumps(server.id)}"]
    worker = _worker(spec, server.where)
    if worker is not None:
        settings += _hardware(worker.platform, worker.preset)
    return settings


def preset_settings(text: str) -> list[str]:
    """The hardware of a server elsewhere, given as PLATFORM/PRESET."""
    platform, slash, preset = text.partition("/")
    if not (platform and slash and preset):
        raise JobsError(
            f"--preset {text}: write PLATFORM/PRESET, such as gpu-l40s-d/2gpu-64vcpu-384gb"
        )
    return _hardware(platform, preset)


def settings(concurrency: str | None, rates: str | None, sets: Sequence[str]) -> list[str]:
    """The options as settings of the recipe; given settings come last, so they win."""
    found: list[str] = []
    if concurrency is not None:
        found.append(f"load.sweep={_numbers('--concurrency', concurrency, int)}")
    if rates is not None:
        found.append(f"load.open_loop.rates_per_s={_numbers('--rates', rates, float)}")
    return [*found, *sets]


def as_words(sets: Sequence[str]) -> list[str]:
    """The settings as arguments of the module."""
    return job_args(sets)


def _hardware(platform: str, preset: str) -> list[str]:
    return [f"load.target.platform={platform}", f"load.target.preset={preset}"]


def _worker(spec: StackSpec, where: str | None) -> WorkerSpec | None:
    """The nodeset of a node, whose name is the nodeset's with a number."""
    name = (where or "").rpartition("-")[0]
    return next((worker for worker in spec.nodes.workers if worker.name == name), None)


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> str:
    try:
        return json.dumps([kind(each) for each in text.split(",")])
    except ValueError:
        raise JobsError(f"{option} {text}: write numbers with commas, such as 1,2,4,8") from None
