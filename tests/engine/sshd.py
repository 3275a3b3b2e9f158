"""A real sshd on a loopback port for one test, with its own host key and one user key.

Its host key lies where Soperator's login node has it: one pair under the names of three types.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.render.login import FILES, host_key_files
from tests.ports import free_ports


@dataclass(frozen=True)
class Sshd:
    """Where the server is and how to enter."""

    port: int
    host_key: str
    private_key: str

    def connection(self, **changes):
        """Inputs of pulumi-command's connection, as the program has them."""
        user = {"host": "127.0.0.1", "port": self.port, "user": "root"}
        keys = {"privateKey": self.private_key, "hostKey": self.host_key}
        return {**user, **keys, "dialErrorLimit": 10, "perDialTimeout": 15, **changes}


@contextlib.contextmanager
def running_sshd(folder: Path, *, accept_env: bool = True) -> Iterator[Sshd]:
    """Start one in `folder`, and stop it with every session that it has."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or os.geteuid() != 0:
        pytest.skip("needs root and openssh-server (`make setup`)")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    # sshd refuses to start without its fixed privilege separation folder.
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    (port,) = free_ports(1)
    pair = ((folder / "host").read_text(), (folder / "host.pub").read_text())
    for name, text in host_key_files(*pair).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    host_keys = "\n".join(f"HostKey {folder / name}" for name in FILES)
    config = folder / "sshd_config"
    config.write_text(
        f"""ListenAddress 127.0.0.1:{port}
{host_keys}
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
KexAlgorithms -sntrup761*
{"AcceptEnv *" if accept_env else ""}
PidFile none
Subsystem sftp internal-sftp
"""
    )
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen([program, "-D", "-e", "-f", config], stderr=log) as process,
    ):
        try:
            yield Sshd(port, (folder / "host.pub").read_text(), (folder / "user").read_text())
        finally:
            process.terminate()
