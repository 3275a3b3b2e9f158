"""The daemons of a cluster: command, files and what each waits for.

Owns the files in the shared folder that the daemons read. Starts nothing: cluster.py does.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from infra import whole_file
from infra.local.slurm import accounts, conf, power
from infra.local.slurm.pod import STATE_PATH, PodSpec
from infra.local.slurm.settings import SlurmSettings, WorkerNode

ENVIRONMENT: Final = (
    ("PATH", conf.PATH),
    ("HOME", "/root"),
    ("LANG", "C.UTF-8"),
    ("SLURM_CONF", conf.SLURM_CONF),
)
_MUNGE_KEY_BYTES: Final = 128
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

    @property
    def munge_socket(self) -> Path:
        return self.folder / "munge" / "socket"

    def prepare(self) -> None:
        """Make the folders and secrets that outlive every restart."""
        for name in ("munge", "pid", "spool", "ssh", "dev"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "ssh").chmod(0o700)
        key = self.folder / "munge" / "key"
        if not key.exists():
            whole_file.write(key, secrets.token_bytes(_MUNGE_KEY_BYTES), mode=0o600)
        password = self.folder / "database-password"
        if not password.exists():
            whole_file.write(password, secrets.token_hex(16), mode=0o600)
        hosts = self.folder / "hosts"
        if not hosts.exists():
            hosts.write_text(conf.render_hosts([]))

    def munged_argv(self) -> list[str]:
        munge = self.folder / "munge"
        return [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={munge / 'key'}",
            f"--socket={self.munge_socket}",
            f"--pid-file={munge / 'pid'}",
            f"--log-file={munge / 'log'}",
            f"--seed-file={munge / 'seed'}",
        ]

    def write_cluster(self, settings: SlurmSettings) -> None:
        """Write what the Slurm daemons read."""
        self._write("slurm.conf", conf.render_slurm_conf(settings))
        if any(worker.is_elastic for worker in settings.workers):
            power.write_programs(self.folder)
        self._write("gres.conf", conf.render_gres_conf(settings.workers))
        names = [conf.CONTROLLER, conf.ACCOUNTING, conf.LOGIN]
        names += [worker.name for worker in settings.workers]
        # In place: the pods have this very file mounted over their /etc/hosts.
        hosts = self.folder / "hosts"
        if hosts.read_text() != conf.render_hosts(names):
            hosts.write_text(conf.render_hosts(names))
        for worker in settings.workers:
            (self.folder / "spool" / worker.name).mkdir(exist_ok=True)
        most = max((conf.gpus(worker.static)[1] for worker in settings.workers), default=0)
        for index in range(most):
            _make_device(self.folder / "dev" / f"gpu{index}")
        if settings.accounting:
            password = (self.folder / "database-password").read_text()
            slurmdbd = conf.render_slurmdbd_conf(settings, password)
            self._write("slurmdbd.conf", slurmdbd, private=True)
            self._write("database.sql", _database_sql(password), private=True)

    def write_ssh(
        self, port: int, authorized_keys: Sequence[str], host_keys: Sequence[bytes]
    ) -> None:
        """Write what sshd reads; without host keys it gets one of its own."""
        ssh = self.folder / "ssh"
        keys = list(host_keys) or [self._own_host_key()]
        for index, key in enumerate(keys):
            path = ssh / f"host_key_{index}"
            if not path.exists() or path.read_bytes() != key:
                whole_file.write(path, key, mode=0o600)
        self._write("ssh/authorized_keys", "".join(f"{key}\n" for key in authorized_keys))
        accounts.write_programs(self.folder)
        self._write("sshd_config", conf.render_sshd_config(port, len(keys)))

    def read(self, *names: str) -> tuple[str, ...]:
        """Texts of the named files."""
        return tuple((self.folder / name).read_text() for name in names)

    def host_key_texts(self) -> tuple[str, ...]:
        return tuple(path.read_text() for path in sorted((self.folder / "ssh").glob("host_key_?")))

    def _own_host_key(self) -> bytes:
        path = self.folder / "ssh" / "own_host_key"
        if not path.exists():
            argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "login", "-f", str(path)]
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
        return path.read_bytes()

    def _write(self, name: str, text: str, *, private: bool = False) -> None:
        path = self.folder / name
        if path.exists() and path.read_text() == text:
            return
        whole_file.write(path, text, mode=0o600 if private else None)


def mariadb(settings: SlurmSettings, pod: PodSpec, folder: str) -> Daemon:
    """The accounting database; makes its data folder on its first start."""
    script = _DATABASE_SCRIPT.format(
        folder=folder, port=settings.mariadb_port, init_file=f"{STATE_PATH}/database.sql"
    )
    return Daemon(pod=_with_argv(pod, "sh", "-c", script), port=settings.mariadb_port)


def slurmdbd(settings: SlurmSettings, pod: PodSpec, reads: tuple[str, ...]) -> Daemon:
    return Daemon(
        pod=_with_argv(pod, "slurmdbd", "-D"),
        port=settings.slurmdbd_port,
        needs_ports=(settings.mariadb_port,),
        reads=reads,
    )


def slurmctld(settings: SlurmSettings, pod: PodSpec, reads: tuple[str, ...]) -> Daemon:
    return Daemon(
        pod=_with_argv(pod, "slurmctld", "-D", "-f", conf.SLURM_CONF),
        port=settings.slurmctld_port,
        needs_ports=(settings.slurmdbd_port,) if settings.accounting else (),
        reads=reads,
    )


def slurmd(
    settings: SlurmSettings, worker: WorkerNode, pod: PodSpec, reads: tuple[str, ...]
) -> Daemon:
    # A node that is powered up counts as there once it has booted since: `-b` reports the start of
    # the daemon as a boot, where the machine below it goes on.
    boots = ("-b",) if worker.is_elastic else ()
    return Daemon(
        pod=_with_argv(pod, "slurmd", "-D", *boots, "-f", conf.SLURM_CONF, "-N", worker.name),
        port=worker.port,
        needs_ports=(settings.slurmctld_port,),
        reads=reads,
    )


def sshd(port: int, pod: PodSpec, reads: tuple[str, ...]) -> Daemon:
    # sshd refuses to start under a relative name: it starts itself again for each connection.
    argv = ("/usr/sbin/sshd", "-D", "-e", "-f", conf.SSHD_CONFIG)
    return Daemon(pod=_with_argv(pod, *argv), port=port, reads=reads)


def _with_argv(pod: PodSpec, *argv: str) -> PodSpec:
    return replace(pod, argv=argv, environment=ENVIRONMENT)


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
