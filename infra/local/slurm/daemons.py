"""The daemons of a cluster: command, files and what each waits for.

Owns the files in the shared folder that the daemons read. Starts nothing: cluster.py does.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from infra import files
from infra.local.slurm import conf, pod
from infra.local.slurm.conf import SlurmSettings, WorkerNode
from infra.local.slurm.pod import PROFILE, STATE_PATH, PodSpec, SlurmSetup, munge_folder

_MUNGE_KEY_BYTES: Final = 128
_PYXIS: Final = (
    "required spank_pyxis.so runtime_path=/run/pyxis execute_entrypoint=0 container_scope=global "
    "sbatch_support=1\n"
)
_DATABASE_SCRIPT: Final = """set -e
cd {folder}
if [ ! -d data ]; then
  rm -rf new
  mariadb-install-db --no-defaults --user=root --skip-test-db --datadir={folder}/new >&2
  mv new data
fi
exec mariadbd --no-defaults --user=root --datadir={folder}/data --socket={folder}/socket \
--pid-file={folder}/pid --bind-address=127.0.0.1 --port={port} --skip-name-resolve \
--innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --init-file={init_file}
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
            hosts.write_text(conf.render_hosts())

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
        self._write("slurm.conf", conf.render_slurm_conf(settings))
        # Without the operator's importer, which caches what a registry sends.
        self._write("plugstack.conf", _PYXIS if settings.setup.has_pyxis else "")
        pod.write_power_programs(self.folder, settings.setup.path)
        self._write("gres.conf", conf.render_gres_conf(settings.workers))
        if settings.setup.prefix is not None:
            self._write("cgroup.conf", conf.render_cgroup_conf(settings.setup))
            # As the system has it, but for the commands of this Slurm, which come first.
            profile = Path("/etc/profile").read_text().rstrip()
            path = f"{pod.PROGRAMS}:{settings.setup.path}"
            self._write(PROFILE, f"{profile}\nexport PATH={path}\n")
        else:  # Debian's 22.05 refuses what the newer one needs
            for name in ("cgroup.conf", PROFILE):
                (self.folder / name).unlink(missing_ok=True)
        # In place: the pods have this very file mounted over their /etc/hosts.
        hosts, text = self.folder / "hosts", conf.render_hosts(settings)
        if hosts.read_text() != text:
            hosts.write_text(text)
        for worker in settings.workers:
            (self.folder / "spool" / worker.name).mkdir(exist_ok=True)
        most = max((conf.gpus(worker.static)[1] for worker in settings.workers), default=0)
        for index in range(most):
            _make_device(self.folder / "dev" / f"gpu{index}")
        if settings.accounting:
            password = (self.folder / "database-password").read_text()
            slurmdbd = conf.render_slurmdbd_conf(settings, password)
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
        pod.write_programs(self.folder)
        self._write("sshd_config", conf.render_sshd_config(port, len(keys), setup.path))

    def read(self, *names: str) -> tuple[str, ...]:
        """Texts of the named files."""
        return tuple((self.folder / name).read_text() for name in names)

    def host_key_texts(self) -> tuple[str, ...]:
        return tuple(path.read_text() for path in sorted((self.folder / "ssh").glob("host_key_?")))

    def _write(self, name: str, content: str | bytes, *, mode: int | None = None) -> None:
        path, data = self.folder / name, content.encode() if isinstance(content, str) else content
        if not path.exists() or path.read_bytes() != data:
            files.write(path, data, mode=mode)


def mariadb(settings: SlurmSettings, pod: PodSpec, folder: str) -> Daemon:
    """The accounting database; makes its data folder on its first start."""
    script = _DATABASE_SCRIPT.format(
        folder=folder, port=settings.mariadb_port, init_file=f"{STATE_PATH}/database.sql"
    )
    own = _with_argv(pod, settings.setup, "sh", "-c", script)
    return Daemon(pod=own, port=settings.mariadb_port)


def slurmdbd(settings: SlurmSettings, pod: PodSpec, reads: tuple[str, ...]) -> Daemon:
    return Daemon(
        pod=_with_argv(pod, settings.setup, "slurmdbd", "-D"),
        port=settings.slurmdbd_port,
        needs_ports=(settings.mariadb_port,),
        reads=reads,
    )


def slurmctld(settings: SlurmSettings, pod: PodSpec, reads: tuple[str, ...]) -> Daemon:
    return Daemon(
        pod=_with_argv(pod, settings.setup, "slurmctld", "-D", "-f", conf.SLURM_CONF),
        port=settings.slurmctld_port,
        needs_ports=(settings.slurmdbd_port,) if settings.accounting else (),
        reads=reads,
    )


def slurmd(
    settings: SlurmSettings, worker: WorkerNode, pod: PodSpec, reads: tuple[str, ...]
) -> Daemon:
    # A node that is powered up counts as there once it has booted since: `-b` reports the start of
    # the daemon as a boot, as Soperator's does, where the machine below it goes on.
    argv = ("slurmd", "-D", "-b", "-f", conf.SLURM_CONF, "-N", worker.name)
    # munge takes a credential once: the one of a step goes to every node of it.
    own = replace(pod, has_own_munge=True)
    return Daemon(
        pod=_with_argv(own, settings.setup, *argv),
        port=worker.port,
        needs_ports=(settings.slurmctld_port,),
        reads=reads,
    )


def sshd(port: int, pod: PodSpec, reads: tuple[str, ...], setup: SlurmSetup) -> Daemon:
    # sshd refuses to start under a relative name: it starts itself again for each connection.
    argv = ("/usr/sbin/sshd", "-D", "-e", "-f", conf.SSHD_CONFIG)
    return Daemon(pod=_with_argv(pod, setup, *argv), port=port, reads=reads)


def _with_argv(pod: PodSpec, setup: SlurmSetup, *argv: str) -> PodSpec:
    environment = (
        ("PATH", setup.path),
        ("HOME", "/root"),
        ("LANG", "C.UTF-8"),
        ("SLURM_CONF", conf.SLURM_CONF),
    )
    return replace(pod, argv=argv, environment=environment, mounts=(*pod.mounts, *setup.mounts))


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
