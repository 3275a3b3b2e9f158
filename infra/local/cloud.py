"""The embedded cloud as a whole: its parts, their order, and what each needs of this machine.

Parts: the Nebius API, object storage, etcd, the API server, the reconciler. The reconciler starts
the Slurm daemons and starts again whatever part ends; `up` starts the reconciler. Faults are on
purpose: errors of the Nebius API, through its own file of faults, slow operations, killed parts.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from infra.clients.kube import KubeClient
from infra.local import engine, process
from infra.local import k8up as k8up
from infra.local.kube import api_server
from infra.local.kube.api_server import ApiServerConfig, install_crds, write_certificates
from infra.local.nebius_api.errors import Faults
from infra.local.process import LocalError, is_listening, login_in_use
from infra.local.slurm.daemons import SlurmRuntime
from infra.local.slurm.pod import FAST_SETTING, SLURM_SETTING, SlurmSetup
from infra.providers.nebius.sdk import TOKEN_VARIABLE
from infra.state import CHECKOUT, PORT_SETTING, Cache, Ports, State

_PROGRAMS: Final = {
    "etcd": "etcd-server", "munged": "munge", "slurmctld": "slurm-wlm", "slurmd": "slurm-wlm",
    "slurmdbd": "slurmdbd", "mariadbd": "mariadb-server", "/usr/sbin/sshd": "openssh-server",
    "unshare": "util-linux", "pivot_root": "util-linux"
}  # fmt: skip
"""Program and the Debian package that brings it."""


def check_folder(state: State) -> None:
    """Refuse a state folder on a file system without the owners and sockets that daemons need."""
    state.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    probe = state.root / ".probe"
    probe.unlink(missing_ok=True)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            # By a short way: the address of a socket takes at most 107 bytes.
            folder = os.open(state.root, os.O_RDONLY)
            try:
                server.bind(f"/proc/self/fd/{folder}/.probe")
            finally:
                os.close(folder)
        probe.chmod(0o600)
        supported = probe.stat().st_mode & 0o777 == 0o600
    except OSError:
        supported = False
    finally:
        probe.unlink(missing_ok=True)
    if not supported:
        raise LocalError(
            f"SOPERATOR_STATE: {state.root} is on a file system without sockets or file modes "
            f"({_file_system(state.root)}); set it to a folder on a local Linux file system"
        )


def _file_system(path: Path) -> str:
    rows = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    mounts = [(point.replace("\\040", " "), kind) for _, point, kind, *_ in rows]
    holding = [each for each in reversed(mounts) if str(path).startswith(each[0])]
    return max(holding, key=lambda each: len(each[0]), default=("", "unknown"))[1]


EMULATOR: Final = "nebius-api"
OBJECT_STORAGE: Final = "object-storage"
RECONCILER: Final = "reconcile"
SERVICES: Final = (EMULATOR, OBJECT_STORAGE, "etcd", "kube-apiserver", RECONCILER)
_READY_S: Final = 300.0
_LATENCY: Final = {"code": "SLOW", "when": "operation", "method": "", "times": 1_000_000_000}
"""The fault that has every operation last as long as it says."""
_FOREVER: Final = 'while :; do "$@"; sleep 1; done'
"""Nobody else would start the reconciler again after a kill -9."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the cloud for people: a process, and the port it answers on."""

    name: str
    pid: int | None
    port: int | None
    ready: bool
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """The embedded cloud of one state folder."""

    state: State
    cache: Cache
    ports: Ports

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Cloud:
        """The cloud that the environment names."""
        return cls(
            state=State.from_environ(environ),
            cache=Cache.from_environ(environ),
            ports=Ports.from_environ(environ),
        )

    @property
    def kube(self) -> ApiServerConfig:
        """Its API server."""
        return ApiServerConfig(
            folder=self.state.local / "kube",
            run_dir=self.state.run,
            api_port=self.ports.kube_apiserver,
            token=engine.token(self.state),
        )

    @property
    def runtime(self) -> SlurmRuntime:
        """Its Slurm daemons."""
        return SlurmRuntime(self.state.local / "slurm", self.state.run)

    def environment(self) -> dict[str, str]:
        """Environment of its parts."""
        return {
            **os.environ,
            **engine.proxy_exceptions(os.environ),
            "PATH": f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_PATH}",
            "PYTHONPATH": str(CHECKOUT),
            "SOPERATOR_STATE": str(self.state.root),
            "SOPERATOR_CACHE": str(self.cache.root),
            PORT_SETTING: str(self.ports.base),
            "SOPERATOR_NEBIUS_ENDPOINT": f"http://127.0.0.1:{self.ports.nebius_api}",
            TOKEN_VARIABLE: engine.token(self.state),
        }


def up(cloud: Cloud) -> None:
    """Start what does not run; returns once both APIs answer and the reconciler works."""
    check_machine(cloud)
    cloud.state.local.mkdir(parents=True, exist_ok=True)
    cloud.state.local.chmod(0o700)
    engine.make_folders(cloud.state)
    engine.make_ssh_key(cloud.state)
    engine.make_token(cloud.state)
    _stop_what_takes_another_token(cloud)
    write_certificates(cloud.kube.folder / "pki", "127.0.0.1")
    with ThreadPoolExecutor(3) as threads:
        starters = (start_emulator, start_object_storage, _start_kube)
        starting = [threads.submit(start, cloud) for start in starters]
        for started in starting:
            started.result()
    start_reconciler(cloud)


def _stop_what_takes_another_token(cloud: Cloud) -> None:
    """Stops the services of an earlier version, which took one that everybody knows."""
    token, run = engine.token(cloud.state), cloud.state.run
    found = [process.find(name, run) for name in (RECONCILER, EMULATOR)]
    if any(one.environment.get(TOKEN_VARIABLE, token) != token for one in found if one):
        for name in reversed(SERVICES):  # the reconciler first: it starts the others again
            process.stop(name, run)


def down(
    cloud: Cloud, *, purge: bool = False, say: Callable[[str], None] = lambda _line: None
) -> None:
    """Stop every part, job and session; with `purge` remove what they stored."""
    run = cloud.state.run
    stops: dict[str, Callable[[], object]] = {
        RECONCILER: lambda: process.stop(RECONCILER, run),
        "Slurm's daemons, jobs and sessions": cloud.runtime.stop_all,
        "backups": k8up.Runner(cloud.state.local / "k8up", run).stop_all,
        "kube-apiserver, etcd": lambda: api_server.stop(cloud.kube),
        OBJECT_STORAGE: lambda: process.stop(OBJECT_STORAGE, run),
        EMULATOR: lambda: process.stop(EMULATOR, run),
    }
    for part, stop in stops.items():
        say(f"local cloud: stopping {part}")
        stop()
    if purge and cloud.state.local.exists():
        say(f"local cloud: removing {cloud.state.local}")
        shutil.rmtree(cloud.state.local)


def parts(cloud: Cloud) -> list[Part]:
    """Every part that runs or should run."""
    known = {EMULATOR: cloud.ports.nebius_api, "kube-apiserver": cloud.ports.kube_apiserver}
    known[OBJECT_STORAGE] = cloud.ports.object_storage
    recorded = {
        item.name: item
        for item in process.all_processes(cloud.state.run)
        # Jobs come and go: they are no parts.
        if not item.name.startswith(k8up.PREFIX)
    }
    names = [*SERVICES, *sorted(set(recorded) - set(SERVICES))]
    found = []
    for name in names:
        item = recorded.get(name)
        runs = item is not None and item.alive
        port = known.get(name) or cloud.runtime.port_of(name)
        found.append(
            Part(
                name=name,
                pid=item.pid if item is not None and runs else None,
                port=port,
                ready=runs and (port is None or is_listening(port)),
                log=item.log if item is not None else "",
            )
        )
    return found


def slurm_setup(cloud: Cloud) -> SlurmSetup:
    """The Slurm that runs: the one with which `up` started the reconciler, if there is one."""
    running = process.find(RECONCILER, cloud.state.run)
    alive = running is not None and running.alive
    return SlurmSetup.from_environ(running.environment if running and alive else os.environ)


def start_services(cloud: Cloud) -> None:
    """Start the Nebius API, object storage and the API server where they have ended."""
    start_emulator(cloud)
    start_object_storage(cloud)
    api_server.start(cloud.kube)


def start_emulator(cloud: Cloud) -> None:
    """Start the emulated Nebius API and wait for it."""
    options = ["--kube-endpoint", cloud.kube.endpoint, "--kube-ca", str(cloud.kube.ca_file)]
    options += ["--object-storage", f"127.0.0.1:{cloud.ports.object_storage}"]
    _start_listening(cloud, EMULATOR, cloud.ports.nebius_api, options)


def start_object_storage(cloud: Cloud) -> None:
    """Start the emulated object storage and wait for it; what it holds lies beside the others."""
    options = ["--cloud", str(cloud.state.local / EMULATOR)]
    _start_listening(cloud, OBJECT_STORAGE, cloud.ports.object_storage, options)


def start_reconciler(cloud: Cloud) -> None:
    """Start the reconciler, and end what a killed one left: two would undo each other's work."""
    if process.alive(RECONCILER, cloud.state.run):
        runs, wanted = slurm_setup(cloud), SlurmSetup.from_environ()
        if runs != wanted:
            raise LocalError(
                f"{SLURM_SETTING}, {FAST_SETTING}: the local stack runs {runs.describe()}, and "
                f"these ask for {wanted.describe()}; run `soperator local down` first; for another "
                "version of Slurm `soperator local down --purge`, because it cannot read the state "
                "of this one"
            )
        return
    process.stop(RECONCILER, cloud.state.run)
    log = cloud.state.local / "log" / f"{RECONCILER}.log"
    argv = [sys.executable, "-m", "infra.local.reconcile", "--state", str(cloud.state.root)]
    argv = ["/bin/sh", "-c", _FOREVER, "sh", *argv]
    process.start(RECONCILER, argv, run_dir=cloud.state.run, log=log, env=cloud.environment())


def check_machine(cloud: Cloud) -> None:
    """Refuse a machine that cannot run the cloud, naming everything that is missing."""
    if os.geteuid() != 0:
        raise LocalError(
            "the embedded cloud needs root, for mount namespaces and sshd; run it with sudo or in "
            "a container as root"
        )
    slurm = SlurmSetup.from_environ()
    path = os.pathsep.join((slurm.path, cloud.environment()["PATH"]))
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=path) is None]:
        packages = " ".join(sorted({_PROGRAMS[name] for name in missing}))
        names = ", ".join(missing)
        raise LocalError(f"not installed: {names} (Debian: {packages}); run `make setup`")
    api_server.find_api_server()
    check_folder(cloud.state)


def refuse_taken_login_port(cloud: Cloud, path: str, port: int) -> None:
    """Refuse the declared SSH port of the login node, at `path`, while a stranger listens on it."""
    if is_listening(port) and not any(part.pid and part.port == port for part in parts(cloud)):
        raise LocalError(f"{path}: {login_in_use(port)}")


def _start_kube(cloud: Cloud) -> None:
    api_server.start(cloud.kube)
    with closing(KubeClient(cloud.kube.access())) as client:
        install_crds(client)


def _start_listening(cloud: Cloud, name: str, port: int, options: list[str]) -> None:
    """Start a server of this package that does not run, and return once it listens."""
    folder = cloud.state.local / name
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", f"infra.local.{name.replace('-', '_')}", "--state", str(folder)]
    argv += ["--port", str(port), *options]
    log, run, env = cloud.state.local / "log" / f"{name}.log", cloud.state.run, cloud.environment()
    process.serve(
        run,
        {name: lambda: process.start(name, argv, run_dir=run, log=log, env=env, port=port)},
        is_ready=lambda: process.alive(name, run) and is_listening(port),
        timeout_s=_READY_S,
    )


def _fault(code: str, message: str, **more: str) -> dict[str, Any]:
    return {"code": code, "message": f"{message} (planted fault)", **more}


_API_FAULTS: Final = {
    "quota": _fault(
        "RESOURCE_EXHAUSTED", "quota limit exceeded", error="QuotaFailure", retry="NOTHING"
    ),
    "operation": _fault("INTERNAL", "operation failed", when="operation"),
    "lost-answer": _fault("UNAVAILABLE", "the answer was lost", when="after", retry="NOTHING"),
    "expired-token": _fault("UNAUTHENTICATED", "the token has expired"),
    "unavailable": _fault("UNAVAILABLE", "service unavailable", retry="CALL"),
}


def plant_fault(cloud: Cloud, kind: str, method: str, times: int) -> None:
    """Make the next `times` calls of the methods that match fail."""
    try:
        re.compile(method)
    except re.error as error:
        raise LocalError(f"--method '{method}' is no regular expression: {error}") from error
    faults = _faults(cloud)
    with faults.alone():
        faults.plant([*faults.pending(), {**_API_FAULTS[kind], "method": method, "times": times}])


def clear_faults(cloud: Cloud) -> None:
    """Forget every planted fault and the latency."""
    faults = _faults(cloud)
    with faults.alone():
        faults.plant([])


def set_latency(cloud: Cloud, seconds: float) -> None:
    """Make every operation take `seconds`."""
    faults = _faults(cloud)
    with faults.alone():
        others = [one for one in faults.pending() if one["code"] != _LATENCY["code"]]
        faults.plant([*others, {**_LATENCY, "seconds": seconds}])


def kill_part(cloud: Cloud, part: str) -> None:
    """End a part as kill -9 does."""
    found = process.find(part, cloud.state.run) if part else None
    if found is None or not found.alive:
        running = [p.name for p in process.all_processes(cloud.state.run) if p.alive]
        raise LocalError(f"part '{part}' does not run (running: {', '.join(running) or 'none'})")
    os.kill(found.pid, signal.SIGKILL)


def _faults(cloud: Cloud) -> Faults:
    folder = cloud.state.local / EMULATOR
    if not folder.is_dir():
        raise LocalError("the local cloud was never started; run `soperator local up`")
    return Faults(folder)
