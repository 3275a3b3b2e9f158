"""The server job of a stack: which one, its address and key, its chat page, a load test against it.

What a server says is read over SSH. Submits nothing and forwards nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.clients import slurm
from infra.clients.errors import JobsError, last_words
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Job
from infra.clients.ssh import Connection, ConnectionLostError, reopen, split_lines
from infra.jobs import recipes
from infra.jobs.follow import outcome, state_line
from infra.jobs.records import parse_object
from infra.state import listeners
from stacks.machines import nodeset_of
from stacks.spec import StackSpec
from stacks.spec.slurm import LOAD_MODULE, SERVE_MODULE, JobSpec

KEY_VARIABLE: Final = "SOPERATOR_SERVE_API_KEY"
DAYS: Final = 7
"""How far back a running server may have been submitted."""
LOOPBACK: Final = frozenset({"localhost", "::1"})
_LOOK_EVERY_S: Final = 0.5
_LOAD_S: Final = 1800.0
"""A large model from a cold disk takes minutes; a server that is not up by then never will be."""
_HEALTHY_S: Final = 120.0
"""endpoint.json is written once requests are taken."""
_HEALTH: Final = (
    "exec 3<>/dev/tcp/{host}/{port} && printf 'GET /health HTTP/1.0\\r\\n\\r\\n' >&3 && "
    "head -n 1 <&3"
)
_LAST_LINES: Final = 15
_PIECE_BYTES: Final = 16 << 20  # of a log, with each look


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server takes requests, as seen from inside the cluster."""

    host: str
    port: int
    models: tuple[str, ...]
    needs_key: bool
    has_key_file: bool
    """False: it needs no key, or has it from its environment."""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/v1"


def server_job(spec: StackSpec, name: str | None) -> JobSpec:
    """The declared server with this name, or the one called serve, or the only one."""
    servers = {job.name: job for job in spec.jobs if job.is_server}
    if not servers:
        raise JobsError(
            f"{spec.name}: jobs: no server; declare one, such as {{name: serve, module: "
            f"{SERVE_MODULE}, recipe: smollm2_135m_serve_cpu}}, and run `pulumi up --stack "
            f"{spec.name}`"
        )
    if name is None and (len(servers) == 1 or "serve" in servers):
        return servers.get("serve") or next(iter(servers.values()))
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
    log: Callable[[str], None],
    on_look: Callable[[Job], None] = lambda _job: None,
) -> ServerAddress:
    """The address once it answers; says why it waits, and the lines of its log meanwhile.

    A job that ends before is an error with its last words; so is one that loads for too long.
    """
    seen: tuple[str, str | None] | None = None
    lines = _JobLog(outputs, job_id)
    since_s = 0.0
    silent: ServerAddress | None = None
    silent_since_s = 0.0
    while True:
        try:
            job = slurm.find(connection, job_id)
            lines.read(connection, job, log)
            if job.finished:
                end = outcome(job, outputs.stack, is_server=True)
                what = f"job {job.id} {job.name} took no requests: {end}"
                raise JobsError("\n".join([what, *lines.last]))
            if (job.state, job.where) != seen:
                seen, since_s = (job.state, job.where), time.monotonic()
                log(state_line(job))
            on_look(job)
            address = None
            if job.state == "RUNNING":
                address = read_address(connection, outputs, job)
                if address is not None and _is_of(job, address) and _answers(connection, address):
                    lines.read(connection, job, log)  # its last lines came since
                    return address
        except ConnectionLostError as error:
            log(error.trying_again)
            reopen(connection)
            continue
        if job.state == "RUNNING":
            now_s = time.monotonic()
            if address != silent:
                silent, silent_since_s = address, now_s
            elif silent is not None and now_s - silent_since_s > _HEALTHY_S:
                what = f"does not answer at {silent}, asked from the login node"
                if not _is_of(job, silent):
                    what = f"says that it answers at {silent}, which is no node of it ({job.where})"
                raise JobsError(
                    f"job {job.id} {what}; see: soperator logs {job.id} -s {outputs.stack}"
                )
            if now_s - since_s > _LOAD_S:
                raise JobsError(
                    f"job {job.id} runs and takes no requests after {_LOAD_S:g} s; "
                    f"see: soperator logs {job.id} -s {outputs.stack}"
                )
        time.sleep(_LOOK_EVERY_S)


def read_address(shell: slurm.Shell, outputs: StackOutputs, job: Job) -> ServerAddress | None:
    """What the server wrote when it began to take requests; None before that.

    What the job's life before a requeue wrote counts not: a neighbour may have its port by now.
    """
    path = f"{outputs.results_path(job.id)}/endpoint.json"
    found = shell.run(f"cat {shlex.quote(path)}")
    if not found.ok:
        return None
    try:
        values = parse_object(found.stdout)
        if values.get("restarts", job.restarts) != job.restarts:
            return None
        return ServerAddress(
            host=str(values["host"]),
            port=int(values["port"]),
            models=tuple(map(str, values["models"])),
            needs_key=bool(values["needs_key"]),
            has_key_file=values["api_key_file"] is not None,
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise JobsError(
            f"{path}: is damaged: {error}; cancel job {job.id} and serve anew"
        ) from error


def _is_of(job: Job, address: ServerAddress) -> bool:
    """Whether the address is one of the job's nodes; what the file says gets prompts and key."""
    if address.host in LOOPBACK or re.fullmatch(r"127(\.\d+){3}", address.host):
        return True
    return address.host in slurm.expand(job.where or "")


def key_file(
    root: Path, outputs: StackOutputs, job: JobSpec, sets: Sequence[str], *, results: str
) -> str:
    """The file that the recipe of the checkout `root` declares, or the one that a server makes.

    What the job says of it is not asked: who owns its results would choose what is read and sent.
    """
    declared = recipes.serve_settings(root, job, sets).get("api_key_file")
    if not isinstance(declared, str):
        return f"{results}/api_key"
    place, closed, rest = declared.removeprefix("{place:").partition("}")
    return f"{outputs.places[place]}{rest}" if closed else declared


# The owner is asked of what was opened: a name may become another's file, or a link, in between.
_READ_KEY: Final = """
exec 3< {file} || exit 1
[ ! -L {file} ] && [ "$(stat -Lc %u /dev/fd/3)" = "$(stat -c %u {results})" ] ||
  {{ stat -c 'is a %F of %U, mode %a' {file} >&2; exit 1; }}
cat <&3
"""


def read_key(
    shell: slurm.Shell,
    address: ServerAddress,
    file: str,
    *,
    results: str,
    environment: Mapping[str, str],
) -> str | None:
    """The server's key, from its file on the cluster or `environment`; None: it needs none.

    The file is read where it is of the user whose `results` these are, and no link.
    """
    if not address.needs_key:
        return None
    if not address.has_key_file:
        if key := environment.get(KEY_VARIABLE):
            return key
        raise JobsError(
            f"{address}: the server has its key from its environment, so no file holds it; export "
            f"{KEY_VARIABLE} here as it was there"
        )
    script = _READ_KEY.format(file=shlex.quote(file), results=shlex.quote(results))
    found = shell.run(script)
    key = found.stdout.strip()
    if not found.ok or not key:
        raise JobsError(
            f"{file}: no key of the job's user can be read on the login node: "
            f"{last_words(found.stderr)}; set serve.api_key_file to a file in a shared place"
        )
    return key


def _answers(shell: slurm.Shell, address: ServerAddress) -> bool:
    # By bash alone: a login node need not have curl.
    script = _HEALTH.format(host=shlex.quote(address.host), port=address.port)
    answer = shell.run(f"timeout 5 bash -c {shlex.quote(script)}")
    return answer.ok and " 200 " in answer.stdout


class _JobLog:
    """The lines of a job's log, each told once; the last ones are kept."""

    def __init__(self, outputs: StackOutputs, job_id: str) -> None:
        self._outputs = outputs
        self._id = job_id
        self._num_bytes = 0
        self._rest = b""
        self.last: list[str] = []

    def read(self, connection: Connection, job: Job, log: Callable[[str], None]) -> None:
        path = shlex.quote(self._outputs.log_path(job.name, self._id))
        piece = f"tail -c +{self._num_bytes + 1} {path} | head -c {_PIECE_BYTES}"
        new = connection.run_bytes(piece)[1]
        self._num_bytes += len(new)
        lines, self._rest = split_lines(self._rest, new)
        for line in lines:
            # What is drawn over itself shows its last state; the run record is for programs.
            text = line.rpartition("\r")[2].rstrip()
            if text and not text.startswith('{"schema'):
                log(f"  {text}")
                self.last = [*self.last[1 - _LAST_LINES :], text]


HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 7861
"""Beside 7860, where the server of the `local` stack listens on this machine."""
_UP_S: Final = 300.0
_END_S: Final = 10.0


class ChatPage:
    """A running page, until `close`."""

    def __init__(
        self,
        url: str,
        *,
        port: int,
        key: str | None,
        token: str,
        record: Path,
        checkout: Path,
        options: Sequence[str] = (),
    ) -> None:
        """`url` is the server's up to /v1; `record` keeps votes and times, without any text.

        A browser that opened a page with the token goes on with the next one that has it.
        """
        # With --share Gradio asks for a password instead, and leaves the token where it is.
        self.address = f"http://{HOST}:{port}/?token={token}"
        self._port = port
        words = [sys.executable, "-m", "workloads.chat", "--url", url, "--port", str(port)]
        words += ["--record", str(record), "--until-stdin-ends", *options]
        environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
        environment["SOPERATOR_CHAT_TOKEN"] = token
        if key is not None:
            environment[KEY_VARIABLE] = key
        # Ctrl-C is for who started it, which then closes everything in order. Its end, however it
        # comes, closes the pipe and so ends the page.
        self._process = subprocess.Popen(
            words, cwd=checkout, env=environment, stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def is_running(self) -> bool:
        """False once the page has ended."""
        return self._process.poll() is None

    def wait_until_up(self) -> None:
        """Returns when a browser can open it; a page that ends before is an error."""
        deadline_s = time.monotonic() + _UP_S
        while not _listens(self._port):
            if not self.is_running:
                raise JobsError(
                    f"the chat page ended with {self._process.returncode} before it was up; its "
                    "last line says why"
                )
            if time.monotonic() > deadline_s:
                raise JobsError(f"the chat page is not up after {_UP_S:g} s; is this machine busy?")
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the page and waits for its end."""
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            # With --share it has a program of its own, which would keep the public link open.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def free_port(wanted: int) -> int:
    """The port that a page can have, 0 for any; refused before anything else is started."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except (OSError, OverflowError) as error:
            raise JobsError(
                f"--port {wanted}: {error}; choose another one, or 0 for any free one"
            ) from error
        return probe.getsockname()[1]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        is_up = probe.connect_ex((HOST, port)) == 0
    # Somebody else's while the page starts would get the prompts; without /proc none is known.
    return is_up and not listeners(HOST, port) - {os.geteuid()}


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
    nodeset = nodeset_of(spec, server.where or "")
    worker = next((each for each in spec.nodes.workers if each.name == nodeset), None)
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


def _hardware(platform: str, preset: str) -> list[str]:
    return [f"load.target.platform={platform}", f"load.target.preset={preset}"]
