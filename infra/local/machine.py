"""What the embedded cloud needs of a machine: programs, file modes, sockets in files."""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from typing import Final

from infra.local.errors import LocalError
from infra.local.state import State

_PROGRAMS: Final = {
    "etcd": "etcd-server",
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "/usr/sbin/sshd": "openssh-server",
    "unshare": "util-linux",
    "pivot_root": "util-linux",
}
"""Program and the Debian package that brings it."""


def check_programs(path: str) -> None:
    """Refuse a machine on whose `path` programs are missing, naming all of them."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        packages = " ".join(sorted({_PROGRAMS[name] for name in missing}))
        names = ", ".join(missing)
        raise LocalError(f"not installed: {names} (Debian: {packages}); run `make setup`")


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
    found = "unknown"
    best = ""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, kind, *_ = line.split()
        point = re.sub(r"\\040", " ", point)
        if str(path).startswith(point) and len(point) >= len(best):
            best, found = point, kind
    return found
