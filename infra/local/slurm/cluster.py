"""The running cluster: brings the daemons on this machine to what is wanted, again and again.

Owns start, restart and end of the pods, and the wait before a daemon that keeps failing is tried
again. `converge` never blocks on a daemon's start: call it until everything is ready.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from infra.local import ports, process
from infra.local.slurm import pod as pods
from infra.local.slurm.conf import CONTROLLER, LOGIN, SLURM_CONF
from infra.local.slurm.daemons import Daemon, SharedFolder

_PREFIX: Final = "slurm-"
_MUNGED: Final = "slurm-munged"
_STOP_S: Final = 6.0
_REQUEUE: Final = (
    "squeue --noheader --states=RUNNING,SUSPENDED --format=%i"
    " | xargs --no-run-if-empty scontrol requeue"
)
_REQUEUE_S: Final = 5.0
_FIRST_RETRY_S: Final = 0.5
_LAST_RETRY_S: Final = 10.0


@dataclass(slots=True)
class _Attempt:
    """When a daemon that ended may be started again."""

    not_before: float = 0.0
    wait_s: float = _FIRST_RETRY_S


@dataclass(slots=True)
class SlurmRuntime:
    """The daemons of one state folder."""

    folder: Path
    run_dir: Path
    _attempts: dict[str, _Attempt] = field(default_factory=dict)

    @property
    def shared(self) -> SharedFolder:
        return SharedFolder(self.folder / "shared")

    @property
    def pods_folder(self) -> Path:
        return self.folder / "pods"

    def converge(self, daemons: Sequence[Daemon]) -> dict[str, str]:
        """Start, restart and stop; why each daemon is not ready, by pod, empty where it is."""
        wanted = {daemon.pod.name: daemon for daemon in daemons}
        self._stop_unwanted(wanted)
        if not daemons:
            self._attempts.clear()
            return {}
        self.shared.prepare()
        process.start(
            _MUNGED,
            self.shared.munged_argv(),
            run_dir=self.run_dir,
            log=self._log("munged"),
        )
        return {name: self._converge_one(daemon) for name, daemon in wanted.items()}

    def stop_all(self) -> None:
        """End every daemon, job and SSH session; running jobs start anew with the next daemons."""
        self._requeue_jobs()
        self._stop_unwanted({})

    def _requeue_jobs(self) -> None:
        """Tell slurmctld of the jobs' end: nobody else would, and it would call them running."""
        controller = process.find(_PREFIX + CONTROLLER, self.run_dir)
        if controller is None or not controller.alive:
            return
        inside = ["nsenter", f"--target={controller.pid}", "--mount", "--root", "--wd"]
        shell = ["env", f"SLURM_CONF={SLURM_CONF}", "sh", "-c", _REQUEUE]
        # At worst a job stays until its time limit; that must not keep the daemons from ending.
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run([*inside, *shell], timeout=_REQUEUE_S, capture_output=True, check=False)

    def port_of(self, process_name: str) -> int | None:
        """Port that the daemon recorded under this process name answers on."""
        port = self._started(process_name.removeprefix(_PREFIX)).get("port")
        return port if isinstance(port, int) else None

    def _converge_one(self, daemon: Daemon) -> str:
        spec = daemon.pod
        name = _PREFIX + spec.name
        hashes: dict[str, str | int] = {
            "mounts": spec.mounts_hash,
            "restart": daemon.restart_hash,
            "port": daemon.port,
        }
        running = process.alive(name, self.run_dir)
        started = self._started(spec.name)
        if running and started.get("mounts") != hashes["mounts"]:
            self._stop_pod(spec.name)
            running = False
        elif running and started.get("restart") != hashes["restart"]:
            process.stop(name, self.run_dir)
            running = False
        if running:
            if ports.is_listening(daemon.port):
                self._attempts.pop(spec.name, None)
                return ""
            return f"not yet listening on port {daemon.port}"
        return self._start(daemon, name, hashes)

    def _start(self, daemon: Daemon, name: str, hashes: dict[str, str | int]) -> str:
        spec = daemon.pod
        if not self.shared.munge_socket.exists():
            return "waits for munge"
        for port in daemon.needs_ports:
            if not ports.is_listening(port):
                return f"waits for port {port}"
        if not ports.is_free(daemon.port):
            told = ports.login_in_use if spec.name == LOGIN else ports.in_use
            return told(daemon.port)
        attempt = self._attempts.setdefault(spec.name, _Attempt())
        now = time.monotonic()
        if now < attempt.not_before:
            return f"ended: {_last_line(self._log(spec.name))}"
        attempt.not_before = now + attempt.wait_s
        attempt.wait_s = min(2 * attempt.wait_s, _LAST_RETRY_S)
        folder = self.pods_folder / spec.name
        (folder / "root").mkdir(parents=True, exist_ok=True)
        script = folder / "start.sh"
        script.write_text(pods.render_script(spec, self.folder))
        (folder / "started.json").write_text(json.dumps(hashes))
        process.start(
            name,
            pods.argv(script),
            run_dir=self.run_dir,
            log=self._log(spec.name),
            env={"PATH": dict(spec.environment)["PATH"]},
        )
        return "starting"

    def _stop_unwanted(self, wanted: dict[str, Daemon]) -> None:
        recorded = [
            item.name.removeprefix(_PREFIX)
            for item in process.all_processes(self.run_dir)
            if item.name.startswith(_PREFIX) and item.name != _MUNGED
        ]
        unwanted = [name for name in recorded if name not in wanted]
        if unwanted:
            with ThreadPoolExecutor(len(unwanted)) as threads:
                list(threads.map(self._stop_pod, unwanted))
        if not wanted:
            pods.kill(self.folder, timeout_s=_STOP_S)
            process.stop(_MUNGED, self.run_dir)

    def _stop_pod(self, name: str) -> None:
        """End the pod's daemon and all that lives in the pod; what it kept for itself goes."""
        process.stop(_PREFIX + name, self.run_dir, timeout_s=_STOP_S)
        pods.kill(self.folder, name, timeout_s=_STOP_S)
        for part in ("tmp", "root", "start.sh", "started.json"):
            path = self.pods_folder / name / part
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _started(self, pod: str) -> dict[str, str | int]:
        path = self.pods_folder / pod / "started.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def _log(self, pod: str) -> Path:
        return self.folder / "log" / f"{pod}.log"


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "no output")[:300]
