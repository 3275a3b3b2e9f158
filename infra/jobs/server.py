"""The server job of a stack: which one, whether it runs, when it takes requests, and its key.

Owns what is read of a server over SSH. Submits nothing and forwards nothing.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from infra.jobs import slurm
from infra.jobs.errors import JobsError
from infra.jobs.outcomes import outcome
from infra.jobs.outputs import StackOutputs
from infra.jobs.parse import Job
from infra.jobs.reconnect import reopen
from infra.jobs.ssh import Connection, ConnectionLostError
from infra.jobs.waiting import in_words
from stacks.slurm_spec import SERVE_MODULE, JobSpec
from stacks.spec import StackSpec

KEY_VARIABLE: Final = "SOPERATOR_SERVE_API_KEY"
DAYS: Final = 7
"""How far back a running server may have been submitted."""
_LOOK_EVERY_S: Final = 0.5
_LOAD_S: Final = 1800.0
"""A large model from a cold disk takes minutes; a server that is not up by then never will be."""
_HEALTHY_S: Final = 120.0
"""endpoint.json is written once requests are taken; a requeued server's former one is removed."""
_HEALTH: Final = (
    "exec 3<>/dev/tcp/{host}/{port} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && "
    "head -n 1 <&3"
)
_LAST_LINES: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server takes requests, as seen from inside the cluster."""

    host: str
    port: int
    models: tuple[str, ...]
    needs_key: bool
    api_key_file: str | None
    """On the cluster; None: it needs no key, or has it from its environment."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


def server_job(spec: StackSpec, name: str | None) -> JobSpec:
    """The declared server with this name, or the only one; refused with the names there are."""
    servers = {job.name: job for job in spec.jobs if job.is_server}
    if not servers:
        raise JobsError(
            f"{spec.name}: jobs: no server; declare one, such as {{name: serve, module: "
            f"{SERVE_MODULE}, recipe: smollm2_135m_serve_cpu}}, and run `pulumi up --stack "
            f"{spec.name}`"
        )
    if name is None and len(servers) == 1:
        return next(iter(servers.values()))
    if name in servers:
        return servers[name]
    what = "there are several servers" if name is None else f"{name!r} is no server"
    raise JobsError(f"{spec.name}: jobs: {what}; name one with --job: {', '.join(sorted(servers))}")


def open_job(jobs: Iterable[Job], name: str) -> Job | None:
    """The newest job of this name that runs or will; None where there is none."""
    found = [job for job in jobs if job.name == name and not job.finished]
    return max(found, key=lambda job: int(job.id.split("_")[0]), default=None)


def wait_until_up(
    connection: Connection,
    outputs: StackOutputs,
    job_id: str,
    *,
    say: Callable[[str], None],
) -> ServerAddress:
    """The address once it answers; says why it waits, and the lines of its log meanwhile.

    A job that ends before is an error with its last words; so is one that loads for too long.
    """
    seen: tuple[str, str | None] | None = None
    log = _Log(outputs, job_id)
    running_since_s: float | None = None
    silent: ServerAddress | None = None
    silent_since_s = 0.0
    while True:
        try:
            job = slurm.find(connection, job_id)
            log.read(connection, job, say)
            if job.finished:
                raise JobsError(_ended(job, outputs.stack, log.last))
            if (job.state, job.where) != seen:
                seen = (job.state, job.where)
                say(_state_line(job))
            address = None
            if job.state == "RUNNING":
                # The file may be of the life before a requeue, until the new server removes it.
                address = read_address(connection, outputs, job_id)
                if address is not None and _answers(connection, address):
                    log.read(connection, job, say)  # its last lines came since
                    return address
        except ConnectionLostError as error:
            say(error.trying_again)
            reopen(connection)
            continue
        if job.state == "RUNNING":
            now_s = time.monotonic()
            if address != silent:
                silent, silent_since_s = address, now_s
            elif silent is not None and now_s - silent_since_s > _HEALTHY_S:
                raise JobsError(
                    f"job {job.id} does not answer at {silent}, asked from the login node; "
                    f"see: soperator logs {job.id} -s {outputs.stack}"
                )
            running_since_s = running_since_s or now_s
            if now_s - running_since_s > _LOAD_S:
                raise JobsError(
                    f"job {job.id} runs and takes no requests after {_LOAD_S:g} s; "
                    f"see: soperator logs {job.id} -s {outputs.stack}"
                )
        time.sleep(_LOOK_EVERY_S)


def read_address(shell: slurm.Shell, outputs: StackOutputs, job_id: str) -> ServerAddress | None:
    """What the server wrote when it began to take requests; None before that."""
    path = f"{outputs.results_path(job_id)}/endpoint.json"
    found = shell.run(f"cat {shlex.quote(path)}")
    if not found.ok:
        return None
    try:
        values = json.loads(found.stdout)
        return ServerAddress(
            host=values["host"],
            port=int(values["port"]),
            models=tuple(values["models"]),
            needs_key=bool(values["needs_key"]),
            api_key_file=values["api_key_file"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise JobsError(
            f"{path}: is damaged: {error}; cancel job {job_id} and serve anew"
        ) from error


def read_key(
    shell: slurm.Shell, address: ServerAddress, *, environment: Mapping[str, str]
) -> str | None:
    """The server's key, from its file on the cluster or `environment`; None: it needs none."""
    if not address.needs_key:
        return None
    if address.api_key_file is None:
        if key := environment.get(KEY_VARIABLE):
            return key
        raise JobsError(
            f"{address}: the server has its key from its environment, so no file holds it; export "
            f"{KEY_VARIABLE} here as it was there"
        )
    found = shell.run(f"cat {shlex.quote(address.api_key_file)}")
    key = found.stdout.strip()
    if not found.ok or not key:
        raise JobsError(
            f"{address.api_key_file}: no key can be read on the login node; "
            "set serve.api_key_file to a file in a shared place"
        )
    return key


def _answers(shell: slurm.Shell, address: ServerAddress) -> bool:
    # By bash alone: a login node need not have curl.
    script = _HEALTH.format(host=shlex.quote(address.host), port=address.port)
    answer = shell.run(f"timeout 5 bash -c {shlex.quote(script)}")
    return answer.ok and " 200 " in answer.stdout


class _Log:
    """The lines of a job's log, each told once; the last ones are kept."""

    def __init__(self, outputs: StackOutputs, job_id: str) -> None:
        self._outputs = outputs
        self._id = job_id
        self._num_bytes = 0
        self._rest = b""
        self.last: list[str] = []

    def read(self, connection: Connection, job: Job, say: Callable[[str], None]) -> None:
        path = shlex.quote(self._outputs.log_path(job.name, self._id))
        found, new = connection.run_bytes(f"tail -c +{self._num_bytes + 1} {path}")
        if not found.ok:
            return
        self._num_bytes += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            # What is drawn over itself shows its last state; the run record is for programs.
            text = line.decode(errors="replace").rpartition("\r")[2].rstrip()
            if text and not text.startswith('{"schema'):
                say(f"  {text}")
                self.last = [*self.last[1 - _LAST_LINES :], text]


def _state_line(job: Job) -> str:
    if job.waits:
        return f"job {job.id} {job.name} waits: {in_words(job.where)}"
    where = f" on {job.where}" if job.where else ""
    return f"job {job.id} {job.name} is {job.state}{where}"


def _ended(job: Job, stack: str, last: list[str]) -> str:
    lines = [f"job {job.id} {job.name} took no requests: {outcome(job, stack)}", *last]
    return "\n".join(lines)
