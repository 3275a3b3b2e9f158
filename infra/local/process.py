"""Processes of the embedded cloud: detached, recorded, never mistaken for one that reused a pid.

Owns run/<name>.json: pid, start time and command of one process. A process is its own session and
process group, so stopping it stops what it forked. Does not restart anything: reconcile/ does.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

from infra import files
from infra.state import PORT_SETTING, listeners, told_owner
from stacks.errors import UserError


class LocalError(UserError):
    """The embedded cloud cannot do what was asked on this machine."""


PORT_IN_USE: Final = "PortInUse"
"""Reason of a Kubernetes condition: no waiting helps against a stranger on the port."""
_HOST: Final = "127.0.0.1"
_IN_USE: Final = "is in use by another program"


def is_listening(port: int) -> bool:
    """Whether a server listens on 127.0.0.1:port, without disturbing it by a connection."""
    return told_owner(port) is not None or bool(listeners(_HOST, port))


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def in_use(port: int) -> str:
    """The refusal of one of the embedded cloud's own ports."""
    return f"port {port} {_IN_USE}; stop it or set {PORT_SETTING} to another base port"


def login_in_use(port: int) -> str:
    """The refusal of the login node's port, which the stack declares."""
    return (
        f"port {port} of {_HOST} {_IN_USE}; stop it or declare a free port as login.ssh_port, "
        "30000 to 32767"
    )


def tells_of_use(text: str) -> bool:
    """Whether a message is one of these refusals."""
    return _IN_USE in text


MARK = "SOPERATOR_PROCESS"
"""Environment variable that tells a process of ours from a stranger once its leader is gone."""

# The child waits until its record is on disk: whoever dies here, no process runs unrecorded.
_WAIT_FOR_RECORD = 'read -r _ || exit 1; exec "$@" < /dev/null'

_ENV_BOUNDS: Final = slice(47, 49)  # fields 50 and 51 of proc_pid_stat(5), the state is field 3
_EXEC_S: Final = 5.0
_POLL_S: Final = 0.05
_END_POLL_S: Final = 0.02
_IMPATIENT_S: Final = 0.5
_PORT_TIMEOUT_S: Final = 5.0

_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One recorded process; `start_ticks` and `boot_id` make its pid unique for ever."""

    name: str
    pid: int
    start_ticks: int
    boot_id: str
    argv: tuple[str, ...]
    log: str

    @property
    def alive(self) -> bool:
        """True while exactly this process runs (a zombie does not)."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            del _children[self.pid]
        return self.boot_id == _boot_id() and start_ticks(self.pid) == self.start_ticks

    @property
    def environment(self) -> dict[str, str]:
        """Variables that it runs with; none once it has ended."""
        entries = (entry.decode(errors="replace") for entry in _environment(self.pid))
        return dict(entry.split("=", 1) for entry in entries if "=" in entry) if self.alive else {}


def start(
    name: str,
    argv: Sequence[str],
    *,
    run_dir: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    port: int = 0,
) -> Process:
    """Start `argv` detached and record it; returns the running one if it runs already.

    `env` is the whole environment (default: this process's). Output is appended to `log`. A
    `port` that it listens on is refused where a stranger has it.
    """
    environment = dict(os.environ if env is None else env)
    if shutil.which(argv[0], path=environment.get("PATH", os.defpath)) is None:
        raise LocalError(f"{name}: program '{argv[0]}' is not installed; run `make setup`")
    run_dir.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with _locked(name, run_dir):
        recorded = find(name, run_dir)
        if recorded is not None and recorded.alive:
            return recorded
        # A killed process gives its port back only when its last thread is gone.
        deadline = time.monotonic() + _PORT_TIMEOUT_S
        while port and not is_free(port):
            if time.monotonic() > deadline:
                raise LocalError(f"{name}: {in_use(port)}")
            time.sleep(_POLL_S)
        environment[MARK] = _mark(name, run_dir)
        with log.open("ab") as output:
            child = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_FOR_RECORD, "sh", *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=cwd,
                start_new_session=True,
            )
        _children[child.pid] = child
        process = Process(
            name=name,
            pid=child.pid,
            start_ticks=start_ticks(child.pid) or 0,
            boot_id=_boot_id(),
            argv=tuple(argv),
            log=str(log),
        )
        files.write(_record_path(name, run_dir), json.dumps(asdict(process), indent=1) + "\n")
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        return process


def serve(
    run_dir: Path,
    starts: Mapping[str, Callable[[], Process]],
    *,
    is_ready: Callable[[], bool],
    timeout_s: float,
) -> None:
    """Start what does not run, and return once all is ready; each stands on those before it.

    A killed process counts as alive until its last thread is gone: what was found may still end
    and is started then. Only what this call started must not.
    """
    started: dict[str, Process] = {}
    names = list(starts)
    deadline = time.monotonic() + timeout_s
    while not is_ready():
        for index, name in enumerate(names):
            if alive(name, run_dir):
                continue
            for later in names[index + 1 :]:
                # An API server that lost its store hangs on its caches for up to a minute: start it
                # anew. It keeps nothing, and its orderly end would wait for the store.
                stop(later, run_dir, timeout_s=_IMPATIENT_S)
                started.pop(later, None)
            if name in started:
                log = Path(started[name].log)
                raise LocalError(f"{name}: ended at its start; see {log}: {last_line(log)}")
            started[name] = starts[name]()
        if time.monotonic() > deadline:
            last = find(names[-1], run_dir)  # none where another command stops it now
            see = f"see {last.log}" if last else "is it being stopped?"
            raise LocalError(f"{names[-1]}: not ready after {timeout_s:g} s; {see}")
        time.sleep(_POLL_S)


def stop(name: str, run_dir: Path, timeout_s: float = 10) -> bool:
    """Stop a process and all it forked, TERM then KILL after `timeout_s`; True if anything ran."""
    if not _record_path(name, run_dir).exists():
        return False
    with _locked(name, run_dir):
        process = find(name, run_dir)
        ran = process is not None and end(partial(_is_member, process, run_dir), timeout_s)
        _record_path(name, run_dir).unlink(missing_ok=True)
    return ran


def end(is_ours: Callable[[int], bool], timeout_s: float) -> bool:
    """End every process that is ours, TERM then KILL after `timeout_s`; True if there was one."""
    ran = False
    for number in (signal.SIGTERM, signal.SIGKILL):
        told: set[int] = set()
        deadline = time.monotonic() + timeout_s
        while living := set(filter(is_ours, pids())):
            ran = True
            # Once each: at a second TERM the API server drops everything.
            _signal(living - told, number, is_ours)
            told |= living
            if time.monotonic() > deadline:
                break
            time.sleep(_END_POLL_S)
    return ran


def pids() -> list[int]:
    """Numbers of all processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _signal(wanted: Iterable[int], number: signal.Signals, is_ours: Callable[[int], bool]) -> None:
    """Signal exactly those: their descriptors pin them before they are looked at again.

    All are looked at before the first is signalled: a member without our mark is known by its
    leader alone, which may be gone then.
    """
    with ExitStack() as pinned:
        ours: list[int] = []
        for pid in wanted:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                pinned.callback(os.close, descriptor)
                ours += [descriptor] if is_ours(pid) else []
        for descriptor in ours:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)


def alive(name: str, run_dir: Path) -> bool:
    """True while the process recorded under `name` runs."""
    process = find(name, run_dir)
    return process is not None and process.alive


def find(name: str, run_dir: Path) -> Process | None:
    """The record of `name`, running or not."""
    try:
        fields = json.loads(_record_path(name, run_dir).read_text())
    except (FileNotFoundError, ValueError):  # half-written records cannot be: writes are atomic
        return None
    return Process(**{**fields, "argv": tuple(fields["argv"])})


def all_processes(run_dir: Path) -> list[Process]:
    """Every recorded process by name, running or not."""
    found = (find(path.stem, run_dir) for path in sorted(run_dir.glob("*.json")))
    return [process for process in found if process is not None]


def last_line(log: Path) -> str:
    """The last line of a log in which something is written."""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "no output")


def _is_member(process: Process, run_dir: Path, pid: int) -> bool:
    """Whether it is of the process's group; once the leader is gone, our mark tells."""
    fields = _stat(pid)
    if fields is None or int(fields[2]) != process.pid:
        return False
    mark = f"{MARK}={_mark(process.name, run_dir)}".encode()
    return process.alive or mark in _environment(pid)


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/PID/stat from the state on; None for no process and for a dead one."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields


def start_ticks(pid: int) -> int | None:
    """Start time in clock ticks since boot (field 22 of proc_pid_stat(5))."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def _environment(pid: int) -> list[bytes]:
    """Variables of a process of ours; waits out an exec, during which there are none."""
    deadline = time.monotonic() + _EXEC_S
    while (fields := _stat(pid)) is not None:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            break
        start, end = fields[_ENV_BOUNDS]
        if text or start == end != "0" or time.monotonic() > deadline:
            return text.split(b"\0")
        time.sleep(0.001)
    return []


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _mark(name: str, run_dir: Path) -> str:
    return str(run_dir.resolve() / name)


def _record_path(name: str, run_dir: Path) -> Path:
    return run_dir / f"{name}.json"


@contextmanager
def _locked(name: str, run_dir: Path) -> Iterator[None]:
    """Hold the lock of `name`, so that two commands cannot start it twice."""
    with (run_dir / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
