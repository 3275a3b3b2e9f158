"""Sessions of people on a node: what a shell, Jupyter or TensorBoard asks for, costs and leaves.

A command on the login node that holds GPUs is fed a heartbeat on its standard input. Once none came
for long enough the login node ends it by itself, so that neither a crash, nor a closed laptop, nor
a lost connection leaves GPUs held.
"""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import shlex
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Final

from cost.resources.estimate import Estimate
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell, count, refused
from infra.clients.ssh import LOST, Connection, close_channel, split_lines
from infra.render.sbatch import WHO, gpu_options, memory_mib, place_words
from stacks.machines import cpus_per_rank, share_of_node
from stacks.spec import StackSpec
from stacks.spec.nodes import WorkerSpec
from stacks.spec.slurm import JobSpec

_MINUTES_PER_HOUR: Final = 60
_MIB_PER_CPU: Final = 2048
"""Memory beside a CPU of a session without GPUs; without a figure Slurm gives all of a node."""
_PREFIX: Final = "shell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One session as it will be asked for."""

    name: str
    """Of its Slurm job; no other job has it, so that it can be ended by name."""
    partition: str
    gpus: int
    cpus: int
    memory_mib: int
    minutes: int
    """Slurm ends it then, whatever else happens."""
    options: tuple[str, ...]
    """Of srun, for its GPUs, account and QOS."""
    usd_per_hour: Decimal | None
    """Its share of the dearest node that it may get; None when that price is not known."""

    @property
    def hours(self) -> Decimal:
        """The time limit in hours."""
        return Decimal(self.minutes) / _MINUTES_PER_HOUR

    @property
    def most_usd(self) -> Decimal | None:
        """US dollars up to the time limit."""
        return None if self.usd_per_hour is None else self.usd_per_hour * self.hours

    def srun(self, *words: str, options: Sequence[str] = ()) -> str:
        """The shell command that runs `words` in the session."""
        asked = [
            f"--job-name={self.name}",
            f"--partition={self.partition}",
            "--nodes=1",
            "--ntasks=1",
            f"--cpus-per-task={self.cpus}",
            *([f"--mem={self.memory_mib}M"] if self.memory_mib else []),
            *self.options,
            f"--time={self.minutes}",
        ]
        return shlex.join(["srun", *asked, *options, *words])


def ask(
    rates: Estimate, *, gpus: int | None, cpus: int | None, partition: str | None, hours: float
) -> Ask:
    """The session; refused where no node of the stack could ever give it.

    `gpus` None: one where the partition has any; `cpus` None: the share that goes with the GPUs.
    """
    spec = rates.spec
    queue = _partition(spec, partition)
    if not hours > 0 or not math.isfinite(hours):
        raise JobsError(f"--hours {hours:g}: not a time; give hours such as 2 or 0.5")
    if gpus is None:
        gpus = 1 if rates.workers_of(_job(queue, 1, None)) else 0
    job = _job(queue, gpus, cpus)
    workers = [worker for worker in rates.workers_of(job) if cpus is None or worker.vcpus >= cpus]
    if not workers:
        have = ", ".join(
            f"{worker.name} has {worker.gpus} GPUs and {worker.vcpus} vCPUs"
            for worker in rates.workers_of(_job(queue, 0, None))
        )
        raise JobsError(
            f"{spec.name}: no node of partition {queue} has {gpus} GPUs"
            + (f" and {cpus} vCPUs" if cpus is not None else "")
            + f" ({have or 'it has no worker'}); a session is on one node: ask for less"
        )
    cpus_found = cpus_per_rank(workers, job) * (max(1, gpus) if cpus is None else 1)
    return Ask(
        name=f"{_PREFIX}-{secrets.token_hex(4)}",
        partition=queue,
        gpus=gpus,
        cpus=cpus_found,
        memory_mib=memory_mib(spec, workers, job) if gpus else _MIB_PER_CPU * cpus_found,
        minutes=math.ceil(hours * _MINUTES_PER_HOUR),
        options=(*gpu_options(spec, gpus), *spec.charge.options),
        usd_per_hour=_usd_per_hour(rates, workers, queue, gpus, cpus_found),
    )


def _job(partition: str, gpus: int, cpus: int | None) -> JobSpec:
    return JobSpec(
        name=_PREFIX,
        module="",
        recipe="",
        gpus_per_node=gpus,
        cpus_per_task=cpus,
        partition=partition,
    )


def _partition(spec: StackSpec, name: str | None) -> str:
    """The declared partition, or the one that Slurm takes without a name."""
    names = [each.name for each in spec.slurm.partitions]
    if name is None:
        default = [
            each.name for each in spec.slurm.partitions if "default=yes" in each.config.casefold()
        ]
        return (default or names)[0]
    if name not in names:
        raise JobsError(
            f"{spec.name}: slurm.partitions: {name!r} is not declared (has: {', '.join(names)})"
        )
    return name


def _usd_per_hour(
    rates: Estimate, workers: Sequence[WorkerSpec], queue: str, gpus: int, cpus: int
) -> Decimal | None:
    """The session's share of the dearest node, as cost/runs/spend.py divides a shared one."""
    found: list[Decimal] = []
    for worker in workers:
        usd = rates.node_usd_per_hour[worker.name]
        if usd is None:
            return None
        found.append(usd * share_of_node(rates.spec, queue, worker, gpus, cpus))
    return max(found)


_TIME: Final = "%Y-%m-%dT%H:%M:%S"
_PLANNED: Final = re.compile(r"Job \d+ to start at (\S+)")
_NOW_WITHIN: Final = timedelta(seconds=30)
"""Slurm plans in whole scheduling rounds: this much later is now."""


def num_waiting(shell: Shell, asked: Ask, *, waits: bool) -> int:
    """Jobs that wait in its partition; refused where Slurm would never start the session.

    Unless it `waits`, it is also refused where it would not start now, with how long it would take.
    """
    partition = shlex.quote(asked.partition)
    waiting = f"squeue --noheader --states=PENDING --partition={partition} --format=%i"
    result = shell.run(
        f"date +{_TIME}; {waiting} | wc -l; {asked.srun('true', options=['--test-only'])}"
    )
    lines = result.stdout.split()
    planned = _PLANNED.search(result.stderr)
    if not result.ok or planned is None or len(lines) < 2:
        raise refused(f"partition {asked.partition}: srun --test-only", result)
    found = count(lines[1])
    # Both are the cluster's own time.
    wait = max(timedelta(0), _moment(planned[1]) - _moment(lines[0]))
    if wait > _NOW_WITHIN and not waits:
        what = f"{asked.gpus} GPUs" if asked.gpus else f"{asked.cpus} CPUs"
        raise JobsError(
            f"no {what} are free in partition {asked.partition}: {found} jobs wait there, and "
            f"Slurm would start this at {planned[1]} (in {wait}); ask for less, or wait for it "
            "with --wait"
        )
    return found


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME)  # noqa: DTZ007 (both are the cluster's own time)
    except ValueError as error:
        raise JobsError(f"Slurm printed the time {text!r}, which is not {_TIME}") from error


_MARK: Final = "soperator-endpoint"
_TOLD: Final = re.compile(rf"{_MARK} ([A-Za-z0-9][A-Za-z0-9.-]*) ([0-9]{{1,5}})")
"""A host, and nothing else: this machine's ssh gives what its file names to a shell."""
_FREE_PORT: Final = 'import socket as s; print(s.create_server(("127.0.0.1", 0)).getsockname()[1])'
_INSTALL: Final = "workloads/monitoring/install_tools.sh"
_LAST_LINES: Final = 5
JUPYTER_READY: Final = "is running at"
TENSORBOARD_READY: Final = "Press CTRL+C to quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where something listens, as the login node reaches it."""

    host: str
    port: int


def check_installed(shell: Shell, spec: StackSpec, outputs: StackOutputs, module: str) -> None:
    """Refuses where the cluster lacks a package, with the command that brings it."""
    python = _python(spec)
    found = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    if shell.run(f"test -x {python} && {python} -c {shlex.quote(found)}").ok:
        return
    script = f"{outputs.code_path}/current/{_INSTALL}"
    raise JobsError(
        f"{module} is not in {tools_path(spec)} of the cluster: soperator ssh --root "
        f"-s {spec.name} 'bash {script} {spec.python_env_path}'"
    )


def tools_path(spec: StackSpec) -> str:
    """The environment of Jupyter and TensorBoard, beside that of the jobs and on top of it."""
    return f"{spec.python_env_path}-tools"


def environment(spec: StackSpec, outputs: StackOutputs) -> str:
    """Shell words that give a session the code, the Python and the places that a job has."""
    exports = {"SOPERATOR_STACK": shlex.quote(spec.name), **place_words(spec)}
    values = " ".join(f"{name}={word}" for name, word in exports.items())
    # The release of now: the link leads elsewhere after the next `pulumi up`.
    return (
        f"cd $(readlink -f {shlex.quote(f'{outputs.code_path}/current')}) && "
        f"{WHO} && export {values} PYTHONPATH=$PWD "
        f"PATH={shlex.quote(f'{spec.python_env_path}/bin')}:$PATH"
    )


def jupyter(asked: Ask, spec: StackSpec, outputs: StackOutputs) -> str:
    """Starts Jupyter Lab on the worker's own loopback, entered by SSH; the secret is its token."""
    python = _python(spec)
    script = (
        # In the home folder: what is saved in a release is gone with it.
        f"{environment(spec, outputs)} && export JUPYTER_TOKEN=$SOPERATOR_SECRET && cd && "
        f"port=$({python} -c {shlex.quote(_FREE_PORT)}) && "
        f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" "$port" && '
        f"exec {python} -m jupyterlab --no-browser --allow-root --ip=127.0.0.1 "
        '--port="$port" --ServerApp.port_retries=0'
    )
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


def end(asked: Ask) -> str:
    """The command that ends the session, and before it an srun of the guard's `start`."""
    # An srun that has not asked yet would get its node after the scancel, and hold it.
    return f"kill -- -$! 2>/dev/null; scancel --name={asked.name}"


def held(asked: Ask) -> str:
    """The command that holds the session for others to enter, and tells its node."""
    script = f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" 22 && exec sleep infinity'
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


_TENSORBOARD: Final = """
import atexit, os, runpy, shutil, signal, sys, tempfile
tempfile.tempdir = tempfile.mkdtemp()
atexit.register(shutil.rmtree, tempfile.tempdir)
sys.argv.append("--path_prefix=/" + os.environ.pop("SOPERATOR_SECRET"))
signal.signal(signal.SIGALRM, lambda *_: sys.exit())
signal.alarm(int(sys.argv.pop(1)))
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)
"""


def tensorboard(spec: StackSpec, folder: str, hours: float) -> str:
    """The command that shows the event files of a folder on the login node's own loopback.

    Every user has that loopback: pages are below the guard's secret alone, which is on no command
    line. TensorBoard writes its address into a folder whose name in /tmp all know, to be read or
    led elsewhere; its data server would answer whoever asks on a port of its own.
    """
    python = _python(spec)
    # Not under `timeout`, which tells the end twice: the second SIGTERM leaves the folder behind.
    return (
        f"port=$({python} -c {shlex.quote(_FREE_PORT)}); echo {_MARK} 127.0.0.1 $port; "
        f"{python} -c {shlex.quote(_TENSORBOARD)} {round(hours * 3600)} "
        f"--logdir {shlex.quote(folder)} --host 127.0.0.1 --port $port --load_fast=false"
    )


def check_folder(shell: Shell, folder: str, job_id: str | None) -> None:
    """Refuses a folder of events that no job wrote."""
    if shell.run(f"test -d {shlex.quote(folder)}").ok:
        return
    which = "no job has" if job_id is None else f"job {job_id} has not"
    raise JobsError(
        f"{folder}: {which} written TensorBoard events there; a training job does, from its first "
        "step (soperator status -s STACK lists jobs)"
    )


def wait_for(
    guard: Guard,
    ready: str | None,
    *,
    say: Callable[[str], None],
    admit: Callable[[], bool] = lambda: True,
) -> Endpoint:
    """Where it listens, once it says `ready`; what it prints before is told.

    An end before that is an error with its last lines. `admit` is called until it is True.
    """
    found: Endpoint | None = None
    last: list[str] = []
    is_admitted = False
    for line in guard.lines():
        is_admitted = is_admitted or admit()
        words = line.split()
        if told := _TOLD.fullmatch(" ".join(words)):
            found = Endpoint(host=told[1], port=int(told[2]))
            if ready is None:
                return found
        elif words[:1] == [ENDED]:
            break
        elif line:
            last = [*last, line][-_LAST_LINES:]
            if ready is not None and ready in line and found is not None:
                return found
            say(line)
    raise JobsError(f"it ended before it was up: {'; '.join(last) or 'it printed nothing'}")


def wait_for_end(guard: Guard) -> None:
    """Returns when what the guard holds has ended, or its connection is lost."""
    any(line.split()[:1] == [ENDED] for line in guard.lines())


def _python(spec: StackSpec) -> str:
    return shlex.quote(f"{tools_path(spec)}/bin/python")


SILENCE_S: Final = 60
"""After so long without a line the login node takes this process for gone."""
_BEAT_S: Final = 10.0
_PATIENCE_S: Final = 15.0
_POLL_S: Final = 0.5
_CHUNK_BYTES: Final = 1 << 16
ENDED: Final = "soperator-ended"
# The first line may be a secret: in no argument, no file and no log. Without it nothing is started.
# Job control gives what runs in the background a process group of its own, so that all of it ends.
# It also lets it read the standard input: srun would take the beats, and a session that lives would
# be taken for gone.
_SCRIPT: Final = """
set -m
IFS= read -r SOPERATOR_SECRET || exit 1
export SOPERATOR_SECRET
{start}
while IFS= read -r -t {silence_s} _; do :; done
{end}
"""
_STARTED: Final = "{{ {command}; echo {ended} $?; }} </dev/null 2>&1 &"


class Guard:
    """Open from its making until `close`."""

    def __init__(
        self,
        connection: Connection,
        *,
        end: str,
        start: str = "",
        secret: str = "",
        silence_s: int = SILENCE_S,
    ) -> None:
        """Runs `start` in the background, and `end` when the guard closes or its beat stops.

        `end` may name the process group of `start` as $!; `secret` is $SOPERATOR_SECRET to both.
        """
        started = _STARTED.format(command=start, ended=ENDED) if start else ""
        script = _SCRIPT.format(start=started, end=end, silence_s=silence_s)
        self._channel = connection.hold(f"bash -c {shlex.quote(script)}")
        try:
            self._channel.sendall(f"{secret}\n".encode())
        except LOST as error:
            close_channel(self._channel)
            raise JobsError(
                "the connection to the login node was lost before anything was started; nothing is "
                "held: run this again"
            ) from error
        self._over = threading.Event()
        self._held = b""
        self._lines: deque[str] = deque()
        self._thread = threading.Thread(target=self._beat, daemon=True, name="guard-beat")
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """False once the connection is lost or the login node ended it."""
        return not self._channel.closed and not self._channel.exit_status_ready()

    def lines(self) -> Iterator[str]:
        """What it prints, line by line; an empty one after a moment of silence; ends with it.

        Another call goes on where this one was left.
        """
        self._channel.settimeout(_POLL_S)
        while True:
            while self._lines:
                yield self._lines.popleft()
            try:
                chunk = self._channel.recv(_CHUNK_BYTES)
            except TimeoutError:
                yield ""
                continue
            except LOST:
                return
            if not chunk:
                return
            lines, self._held = split_lines(self._held, chunk)
            self._lines += lines

    def close(self) -> bool:
        """Ends what it guards; whether the login node said that it is done."""
        self._over.set()
        with contextlib.suppress(*LOST):
            self._channel.shutdown_write()
            self._channel.status_event.wait(_PATIENCE_S)
        done = self._channel.exit_status_ready() and self._channel.recv_exit_status() == 0
        close_channel(self._channel)
        self._thread.join(_PATIENCE_S)
        return done

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_S):
            try:
                self._channel.sendall(b"\n")
            except LOST:
                return


def ssh_config(
    outputs: StackOutputs, node: str, key: Path, login_options: Mapping[str, str]
) -> str:
    """Two hosts: `soperator-STACK` is the login node, `soperator-STACK-shell` the session's."""
    login = f"soperator-{outputs.stack}"
    identity = f"  IdentityFile {_quoted(key)}"
    pinned = [f"  {name} {_quoted(value)}" for name, value in login_options.items()]
    return "\n".join(
        [
            f"Host {login}",
            f"  HostName {outputs.login_ip}",
            f"  Port {outputs.ssh_port}",
            f"  User {outputs.user}",
            identity,
            *pinned,
            "",
            f"Host {login}-shell",
            f"  HostName {node}",
            f"  User {outputs.user}",
            f"  ProxyJump {login}",
            identity,
            # Login and worker pods present the same key: Soperator 4.1.7 mounts one Secret into all
            # (internal/render/worker/configmap.go, HostKey), so the pinned one is the node's too.
            f"  HostKeyAlias {outputs.login_ip}",
            *pinned,
            "",
        ]
    )


def _quoted(value: Path | str) -> str:
    text = str(value)
    return f'"{text}"' if " " in text else text
