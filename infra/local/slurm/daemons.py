"""The daemons of a cluster: command, files, what each waits for, and their running.

Owns the files in the shared folder that the daemons read; start, restart and end of the pods, and
the wait before a daemon that keeps failing is tried again. `converge` never blocks on a daemon's
start: call it until everything is ready.

Slurm's files are as the operator of Soperator 4.1.7 writes them (nebius/soperator, configmap.go of
internal/render/common and internal/render/login, read 2026-11-22), but for what one machine has
not: the table in docs/conformance.md. Paths are those that a pod sees. Every daemon answers on
127.0.0.1 at a port of its own: on different loopback addresses `srun` hangs, since its I/O port
answers on another address.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from infra import files
from infra.local import process
from infra.local.slurm import pod as pods
from infra.local.slurm.pod import PROFILE, PROGRAMS, STATE_PATH, PodSpec, SlurmSetup, munge_folder
from stacks.files import fill


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNode:
    """One slurmd: a pod of a NodeSet."""

    name: str
    nodeset: str
    port: int
    static: str
    """`nodeConfig.static` of the NodeSet: CPUs, topology and Gres of every node."""
    memory_mib: int
    features: tuple[str, ...] = ()
    has_gpus: bool = False
    """`gpu.enabled` of the NodeSet, whatever `static` says."""
    is_elastic: bool = False
    """Whether Slurm powers it up for a job and down when it is idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One queue; without nodesets it has all nodes."""

    name: str
    config: str
    nodesets: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """One cluster, as its custom resources declare it."""

    cluster: str
    namespace: str
    """Of its pods: a part of their names in DNS."""
    slurmctld_port: int
    slurmdbd_port: int
    mariadb_port: int
    workers: tuple[WorkerNode, ...]
    declares_nodes: bool
    """Whether NodeName lines are rendered: only for structured partitions."""
    partitions: tuple[Partition, ...] = ()
    raw_partitions: tuple[str, ...] = ()
    accounting: bool = False
    accounting_config: dict[str, str | int] = field(default_factory=dict)
    """Values of the accounting's `slurmConfig`, by Slurm's name."""
    slurm_config: dict[str, str | int] = field(default_factory=dict)
    """Values of `spec.slurmConfig`, by Slurm's name."""
    health_check: Mapping[str, Any] | None = None
    """`spec.healthCheckConfig`: a program that Slurm runs on every node again and again."""
    credential_s: int = 120
    """How long a job may take to launch; so long Slurm also holds back a job that is requeued."""
    custom: str = ""
    setup: SlurmSetup = field(default_factory=SlurmSetup)


CONTROLLER = "controller-0"
ACCOUNTING = "accounting"
DATABASE = "acct-db-0"
DATABASE_FOLDER: Final = "/run/mysql"
LOGIN = "login-0"
MUNGE_SOCKET = f"{STATE_PATH}/munge/socket"
SLURM_CONF = f"{STATE_PATH}/slurm.conf"
SSHD_CONFIG = f"{STATE_PATH}/sshd_config"
CONTROLLER_SPOOL = "/run/slurmctld"

_GRES = re.compile(r"gpu(?::(?P<type>[^:,\s]+))?:(?P<count>\d+)$")
_STRIPPED = re.compile(r"(?i)^(state|features?|nodename)=")


def render_slurm_conf(settings: SlurmSettings) -> str:
    """slurm.conf of the cluster."""
    sets = groupby(settings.workers, key=lambda worker: worker.nodeset)
    return _fill(
        "slurm.conf.j2",
        settings=settings,
        fixed=[worker.name for worker in settings.workers if not worker.is_elastic],
        node_sets=[(name, [worker.name for worker in members]) for name, members in sets],
        is_stripped=_STRIPPED.match,
        controller=CONTROLLER,
        controller_spool=CONTROLLER_SPOOL,
        resume=pods.program(pods.RESUME),
        suspend=pods.program(pods.SUSPEND),
    )


def render_cgroup_conf(setup: SlurmSetup) -> str:
    """cgroup.conf of one that asks for cgroups before a plugin needs them; 24.05 has the word."""
    return "CgroupPlugin=disabled\n" if setup.version >= "24.05" else ""


def render_gres_conf(workers: Sequence[WorkerNode]) -> str:
    """gres.conf: every declared GPU is a device; a count without files drains the node."""
    lines = []
    for worker in workers:
        kind, count = gpus(worker.static)
        if count:
            name = f"NodeName={worker.name} Name=gpu" + (f" Type={kind}" if kind else "")
            lines.append(f"{name} File={STATE_PATH}/dev/gpu[0-{count - 1}]")
    return "\n".join(["AutoDetect=off", *lines]) + "\n"


def render_slurmdbd_conf(settings: SlurmSettings, password: str) -> str:
    """slurmdbd.conf of the cluster's accounting."""
    return _fill("slurmdbd.conf.j2", settings=settings, password=password, accounting=ACCOUNTING)


def render_sshd_config(port: int, num_host_keys: int, path: str) -> str:
    """sshd_config of the login node: keys only, of root and of users of the jail."""
    named: dict[str, Any] = {"slurm_conf": SLURM_CONF, "programs": PROGRAMS, "path": path}
    return _fill("sshd_config.j2", port=port, num_host_keys=num_host_keys, **named)


def _fill(name: str, **values: Any) -> str:
    path = Path(__file__).with_name(name)
    return fill(path, state=STATE_PATH, munge_socket=MUNGE_SOCKET, **values).rstrip() + "\n"


def render_hosts(settings: SlurmSettings | None = None) -> str:
    """/etc/hosts of every pod: the names that DNS knows on the cloud; all of them this machine's.

    Pods of login and workers search both of their services there, so their names work alone; the
    controller's works with its service only (Soperator 4.1.7, internal/render). A kubelet writes a
    pod's own name in the pod's own file: here CONTROLLER and ACCOUNTING are in everybody's.
    """
    names = ["localhost", CONTROLLER, ACCOUNTING]
    if settings is not None:
        services = [f"{settings.cluster}-{name}-svc" for name in ("controller", "accounting")]
        login, worker = (f"{settings.cluster}-{name}-svc" for name in ("login-headless", "nodeset"))
        pods = {LOGIN: login, **{each.name: worker for each in settings.workers}}
        short = [*services, f"{CONTROLLER}.{services[0]}"]
        short += [f"{pod}.{service}" for pod, service in pods.items()]
        names += [*pods, *short]
        names += [f"{name}.{settings.namespace}.svc.cluster.local" for name in short]
    return f"127.0.0.1 {' '.join(names)}\n"


def gpus(static: str) -> tuple[str | None, int]:
    """GPU type and count of `nodeConfig.static`; 0 without a Gres of GPUs."""
    for word in static.split():
        key, _, value = word.partition("=")
        found = _GRES.match(value) if key.lower() == "gres" else None
        if found:
            return found["type"], int(found["count"])
    return None, 0


_MUNGE_KEY_BYTES: Final = 128
_PYXIS: Final = (
    "required spank_pyxis.so runtime_path=/run/pyxis execute_entrypoint=0 container_scope=global "
    "sbatch_support=1\n"
)
_DATABASE_SCRIPT: Final = f"""set -e
cd {DATABASE_FOLDER}
if [ ! -d data ]; then
  rm -rf new
  mariadb-install-db --no-defaults --user=root --skip-test-db --datadir={DATABASE_FOLDER}/new >&2
  mv new data
fi
exec mariadbd --no-defaults --user=root --datadir={DATABASE_FOLDER}/data \
--socket={DATABASE_FOLDER}/socket --pid-file={DATABASE_FOLDER}/pid --bind-address=127.0.0.1 \
--port={{port}} --skip-name-resolve \
--innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --init-file={STATE_PATH}/database.sql
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """One daemon in its pod."""

    pod: PodSpec
    port: int
    """Loopback port that it answers on once it is ready."""
    needs_ports: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    """Texts of the files it reads at its start: a change restarts it."""

    @property
    def restart_hash(self) -> str:
        """Changes when the daemon must be restarted."""
        text = repr((self.pod.argv, self.pod.environment, self.reads))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class SharedFolder:
    """The folder that every pod sees at STATE_PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def munge_socket(self, pod: str = "") -> Path:
        """Socket of the munged of a pod, or of the one that the others share."""
        return munge_folder(self.folder, pod) / "socket"

    def prepare(self) -> None:
        """Make the folders and secrets that outlive every restart."""
        for name in ("munge", "pid", "spool", "ssh", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "ssh").chmod(0o700)
        key = munge_folder(self.folder) / "key"
        if not key.exists():
            files.write(key, secrets.token_bytes(_MUNGE_KEY_BYTES), mode=0o600)
        password = self.folder / "database-password"
        if not password.exists():
            files.write(password, secrets.token_hex(16), mode=0o600)
        hosts = self.folder / "hosts"
        if not hosts.exists():
            hosts.write_text(render_hosts())

    def munged_argv(self, pod: str = "") -> list[str]:
        """The munged of a pod, or the one that the others share; its folder is made."""
        munge = munge_folder(self.folder, pod)
        munge.mkdir(exist_ok=True)
        return [
            # A socket's path has at most 107 characters (unix(7)), a state folder's may have more.
            "env",
            f"--chdir={munge}",
            "munged",
            "--foreground",
            "--force",
            f"--key-file={munge_folder(self.folder) / 'key'}",
            f"--socket=/proc/self/cwd/{self.munge_socket(pod).name}",
            f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
        ]

    def write_cluster(self, settings: SlurmSettings) -> None:
        """Write what the Slurm daemons read."""
        self._write("slurm.conf", render_slurm_conf(settings))
        # Without the operator's importer, which caches what a registry sends.
        self._write("plugstack.conf", _PYXIS if settings.setup.has_pyxis else "")
        (self.folder / pods.REQUESTS).mkdir(parents=True, exist_ok=True)
        request = {"requests": f"{STATE_PATH}/{pods.REQUESTS}", "partial": pods.PARTIAL}
        for verb in (pods.RESUME, pods.SUSPEND):
            text = _fill("power.sh.j2", verb=verb, path=settings.setup.path, **request)
            self._program(f"{pods.FOLDER}/{verb}", text)
        self._write("gres.conf", render_gres_conf(settings.workers))
        if settings.setup.prefix is not None:
            self._write("cgroup.conf", render_cgroup_conf(settings.setup))
            # As the system has it, but for the commands of this Slurm, which come first.
            profile = Path("/etc/profile").read_text().rstrip()
            path = f"{PROGRAMS}:{settings.setup.path}"
            self._write(PROFILE, f"{profile}\nexport PATH={path}\n")
        else:  # Debian's 22.05 refuses what the newer one needs
            for name in ("cgroup.conf", PROFILE):
                (self.folder / name).unlink(missing_ok=True)
        # In place: the pods have this very file mounted over their /etc/hosts.
        hosts, text = self.folder / "hosts", render_hosts(settings)
        if hosts.read_text() != text:
            hosts.write_text(text)
        for worker in settings.workers:
            (self.folder / "spool" / worker.name).mkdir(exist_ok=True)
        most = max((gpus(worker.static)[1] for worker in settings.workers), default=0)
        for index in range(most):
            _make_device(self.folder / "dev" / f"gpu{index}")
        if settings.accounting:
            password = (self.folder / "database-password").read_text()
            slurmdbd = render_slurmdbd_conf(settings, password)
            self._write("slurmdbd.conf", slurmdbd, mode=0o600)
            self._write("database.sql", _database_sql(password), mode=0o600)

    def renew_spool(self, worker: str) -> None:
        """Empty a worker's spool: a new pod finds nothing of what the one before it left.

        On it PMIx would fail to launch a step of a number that was there before.
        """
        spool = self.folder / "spool" / worker
        if spool.is_dir():
            shutil.rmtree(spool)
            spool.mkdir()

    def write_ssh(
        self,
        port: int,
        authorized_keys: Sequence[str],
        host_keys: Sequence[bytes],
        setup: SlurmSetup,
    ) -> None:
        """Write what sshd reads; without host keys it gets one of its own."""
        own = self.folder / "ssh" / "own_host_key"
        if not host_keys and not own.exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "login", "-f", str(own)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        keys = host_keys or [own.read_bytes()]
        for index, key in enumerate(keys):
            self._write(f"ssh/host_key_{index}", key, mode=0o600)
        self._write("ssh/authorized_keys", "".join(f"{key}\n" for key in authorized_keys))
        for name, makes in (("soperator-createuser", True), ("userdel", False)):
            self._program(f"bin/{name}", _fill("account.sh.j2", makes=makes))
        self._write("sshd_config", render_sshd_config(port, len(keys), setup.path))

    def read(self, *names: str) -> tuple[str, ...]:
        """Texts of the named files."""
        return tuple((self.folder / name).read_text() for name in names)

    def host_key_texts(self) -> tuple[str, ...]:
        return tuple(path.read_text() for path in sorted((self.folder / "ssh").glob("host_key_?")))

    def _program(self, name: str, text: str) -> None:
        self._write(name, text)
        (self.folder / name).chmod(0o755)

    def _write(self, name: str, content: str | bytes, *, mode: int | None = None) -> None:
        path, data = self.folder / name, content.encode() if isinstance(content, str) else content
        if not path.exists() or path.read_bytes() != data:
            files.write(path, data, mode=mode)


def daemons_of(
    settings: SlurmSettings, pods: Iterable[PodSpec], shared: SharedFolder, ssh_port: int
) -> list[Daemon]:
    """What runs in each pod, which its name tells: a part of the cluster, or a worker's slurmd."""
    setup = settings.setup
    variables = {"PATH": setup.path, "HOME": "/root", "LANG": "C.UTF-8", "SLURM_CONF": SLURM_CONF}
    ports = {worker.name: worker.port for worker in settings.workers}
    made: list[Daemon] = []
    for pod in pods:
        needs: tuple[int, ...] = ()
        reads = shared.read("slurm.conf", "gres.conf")
        if pod.name == DATABASE:
            # It makes its data folder on its first start.
            port, reads = settings.mariadb_port, ()
            argv = ("sh", "-c", _DATABASE_SCRIPT.format(port=port))
        elif pod.name == ACCOUNTING:
            argv, port = ("slurmdbd", "-D"), settings.slurmdbd_port
            needs, reads = (settings.mariadb_port,), shared.read("slurmdbd.conf")
        elif pod.name == CONTROLLER:
            argv, port = ("slurmctld", "-D", "-f", SLURM_CONF), settings.slurmctld_port
            needs = (settings.slurmdbd_port,) if settings.accounting else ()
        elif pod.name == LOGIN:
            # sshd refuses a relative name: it starts itself again for each connection.
            argv, port = ("/usr/sbin/sshd", "-D", "-e", "-f", SSHD_CONFIG), ssh_port
            reads = (*shared.read("sshd_config"), *shared.host_key_texts())
        else:
            # A node that is powered up counts as there once it has booted since: `-b` reports the
            # start of the daemon as a boot, as Soperator's does, where the machine goes on.
            argv = ("slurmd", "-D", "-b", "-f", SLURM_CONF, "-N", pod.name)
            port, needs = ports[pod.name], (settings.slurmctld_port,)
            # munge takes a credential once: the one of a step goes to every node of it.
            pod = replace(pod, has_own_munge=True)
        mounts = (*pod.mounts, *setup.mounts)
        own = replace(pod, argv=argv, environment=tuple(variables.items()), mounts=mounts)
        made.append(Daemon(pod=own, port=port, needs_ports=needs, reads=reads))
    return made


def _database_sql(password: str) -> str:
    """Statements of the init file, one a line; they run at every start."""
    user = "slurm@'127.0.0.1'"
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        f"CREATE USER IF NOT EXISTS {user};\n"
        f"ALTER USER {user} IDENTIFIED BY '{password}';\n"
        f"GRANT ALL ON slurm_acct_db.* TO {user};\n"
    )


def _make_device(path: Path) -> None:
    """A second /dev/null: slurmd sets CUDA_VISIBLE_DEVICES only for character devices."""
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:  # a container without mknod: the GPU counts, the variable is missing
        path.touch()


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
class SlurmRuntime:
    """The daemons of one state folder."""

    folder: Path
    run_dir: Path
    _attempts: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By pod: when one that ended may be started again, and how long it waits after that."""

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
        now = time.monotonic()
        not_before, wait_s = self._attempts.get(spec.name, (now, _FIRST_RETRY_S))
        if now < not_before:
            return f"ended: {process.last_line(self._log(spec.name))[:300]}"
        self._attempts[spec.name] = (now + wait_s, min(2 * wait_s, _LAST_RETRY_S))
        if not pods.processes(self.folder, spec.name):
            self.shared.renew_spool(spec.name)
            shutil.rmtree(self.pods_folder / spec.name / "tmp", ignore_errors=True)
        before = self._started(spec.name)
        # One that is started for another configuration did not end by itself.
        again = before.get("restart") == hashes["restart"]
        restarts = self.restarts(spec.name) + again
        folder = self.pods_folder / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "started.json").write_text(json.dumps({**hashes, "restarts": restarts}))
        log, env = self._log(spec.name), {"PATH": dict(spec.environment)["PATH"]}
        pods.start(spec, self.folder, name=name, run_dir=self.run_dir, log=log, env=env)
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
            pods.kill(self.folder, timeout_s=_STOP_S / 2)
            process.stop(_MUNGED, self.run_dir)

    def _stop_pod(self, name: str) -> None:
        """End the pod's daemon and all that lives in the pod; what it kept for itself goes."""
        process.stop(_PREFIX + name, self.run_dir, timeout_s=_STOP_S)
        process.stop(_munged(name), self.run_dir)
        pods.kill(self.folder, name, timeout_s=_STOP_S / 2)
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
