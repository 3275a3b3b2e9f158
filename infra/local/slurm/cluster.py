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

from infra.local import process
from infra.local.slurm import pod as pods
from infra.local.slurm.daemons import CONTROLLER, LOGIN, Daemon, SharedFolder

_PREFIX: Final = "slurm-"
_MUNGED: Final = "slurm-munged"
_STOP_S: Final = 6.0
_REQUEUE: Final = (
    "squeue --noheader --states=RUNNING,SUSPENDED --format=%i"
    " | xargs --no-run-if-empty scontrol requeue"
)
_REQUEUE_S: Final = 30.0
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
        for pod in ("", *(name for name, each in wanted.items() if each.pod.has_own_munge)):
            name = _munged(pod)
            process.start(
                name,
                self.shared.munged_argv(pod),
                run_dir=self.run_dir,
                log=self._log(name.removeprefix(_PREFIX)),
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
        # The daemon's own variables say where its Slurm is, and its configuration.
        own = controller.environment
        kept = [f"{name}={own[name]}" for name in ("PATH", "SLURM_CONF") if name in own]
        shell = ["env", *kept, "sh", "-c", _REQUEUE]
        # At worst a job stays until its time limit; that must not keep the daemons from ending.
        with contextlib.suppress(subprocess.SubprocessError, OSError):
            subprocess.run([*inside, *shell], timeout=_REQUEUE_S, capture_output=True, check=False)

    def port_of(self, process_name: str) -> int | None:
        """Port that the daemon recorded under this process name answers on."""
        port = self._started(process_name.removeprefix(_PREFIX)).get("port")
        return port if isinstance(port, int) else None

    def restarts(self, pod: str) -> int:
        """How often the daemon of the pod ended by itself and was started again."""
        return int(self._started(pod).get("restarts", 0))

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
            if process.is_listening(daemon.port):
                self._attempts.pop(spec.name, None)
                return ""
            return f"not yet listening on port {daemon.port}"
        return self._start(daemon, name, hashes)

    def _start(self, daemon: Daemon, name: str, hashes: dict[str, str | int]) -> str:
        spec = daemon.pod
        if not self.shared.munge_socket(spec.name if spec.has_own_munge else "").exists():
            return "waits for munge"
        for port in daemon.needs_ports:
            if not process.is_listening(port):
                return f"waits for port {port}"
        if not process.is_free(daemon.port):
            told = process.login_in_use if spec.name == LOGIN else process.in_use
            return told(daemon.port)
        attempt = self._attempts.setdefault(spec.name, _Attempt())
        now = time.monotonic()
        if now < attempt.not_before:
            return f"ended: {process.last_line(self._log(spec.name))[:300]}"
        attempt.not_before = now + attempt.wait_s
        attempt.wait_s = min(2 * attempt.wait_s, _LAST_RETRY_S)
        if not pods.processes(self.folder, spec.name):
            self.shared.renew_spool(spec.name)
            shutil.rmtree(self.pods_folder / spec.name / "tmp", ignore_errors=True)
        folder = self.pods_folder / spec.name
        (folder / "root").mkdir(parents=True, exist_ok=True)
        script = folder / "start.sh"
        script.write_text(pods.render_script(spec, self.folder))
        before = self._started(spec.name)
        # One that is started for another configuration did not end by itself.
        again = before.get("restart") == hashes["restart"]
        restarts = self.restarts(spec.name) + again
        (folder / "started.json").write_text(json.dumps({**hashes, "restarts": restarts}))
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
        unwanted = sorted({name.removeprefix("munged-") for name in recorded} - set(wanted))
        if unwanted:
            with ThreadPoolExecutor(len(unwanted)) as threads:
                list(threads.map(self._stop_pod, unwanted))
        if not wanted:
            pods.kill(self.folder, timeout_s=_STOP_S)
            process.stop(_MUNGED, self.run_dir)

    def _stop_pod(self, name: str) -> None:
        """End the pod's daemon and all that lives in the pod; what it kept for itself goes."""
        process.stop(_PREFIX + name, self.run_dir, timeout_s=_STOP_S)
        process.stop(_munged(name), self.run_dir)
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


def _munged(pod: str) -> str:
    """Process name of a pod's munged, or of the one that the others share."""
    return f"{_MUNGED}-{pod}" if pod else _MUNGED
