"""Where things are kept on this machine: the state folder, the cache, the ports and who has one.

Owns the names in `.soperator/` and in the cache, and the reading of SOPERATOR_STATE,
SOPERATOR_CACHE and SOPERATOR_LOCAL_PORT_BASE. Makes no folder and starts nothing.
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from stacks.errors import UserError

CHECKOUT: Final = Path(__file__).resolve().parents[1]
"""The folder that holds Pulumi.yaml."""
DEFAULT_STACK = "local"
PULUMI_VERSION: Final = "3.190.0"
"""Newest version whose Go module is served by every Go proxy that we met."""
KUBE_APISERVER_VERSION: Final = "1.36.0"
PORT_SETTING: Final = "SOPERATOR_LOCAL_PORT_BASE"
_DEFAULT_PORT_BASE: Final = 17800
_PORTS: Final = 100


class State:
    """The state folder of one checkout; everything below it may be deleted after a destroy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.passphrase = root / "passphrase"
        """Passphrase of the file backend's secrets."""
        self.token = root / "token"
        """What the embedded cloud's APIs take from its owner: random, made once."""
        self.ssh_key = root / "ssh" / "id_ed25519"
        """Private key of the `local` stack's user."""
        self.ssh_public_key = root / "ssh" / "id_ed25519.pub"
        self.pulumi = root / "pulumi"
        """File backend of deployed stacks."""
        self.pulumi_home = root / "pulumi-home"
        self.offline = root / "offline"
        """File backend and emulator of `soperator env --offline`."""
        self.local = root / "local"
        """The embedded cloud."""
        self.run = self.local / "run"
        """Recorded processes of the embedded cloud."""
        self.report = root / "report.html"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> State:
        """`$SOPERATOR_STATE`, or `.soperator/` in the checkout."""
        root = _folder(environ, "SOPERATOR_STATE", CHECKOUT / ".soperator")
        with suppress(OSError):
            owner = root.stat().st_uid
            if owner not in (0, os.geteuid(), CHECKOUT.stat().st_uid):  # that of `sudo` is there
                raise UserError(
                    f"SOPERATOR_STATE: {root} is of uid {owner}, who could put programs and keys "
                    "there that are used as yours; name a folder of yours"
                )
        return cls(root)

    @property
    def user_key(self) -> Path:
        """Private key of the user who deploys: beside SOPERATOR_SSH_PUBLIC_KEY_FILE, else ours."""
        declared = os.environ.get("SOPERATOR_SSH_PUBLIC_KEY_FILE", "")
        if not declared.endswith(".pub"):
            return self.ssh_key
        return Path(declared.removesuffix(".pub")).expanduser()

    def runs(self, stack: str, job_id: str | None = None) -> Path:
        """Pulled results and run records of a stack, or of one job."""
        folder = self.root / "runs" / stack
        return folder if job_id is None else folder / job_id


class Cache:
    """What set-up builds once per machine, keyed by version; shared by every checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pulumi = root / "bin" / f"pulumi-v{PULUMI_VERSION}" / "pulumi"
        """The engine that set-up installed; absent where one is on PATH."""
        server = f"kube-apiserver-v{KUBE_APISERVER_VERSION}"
        self.kube_apiserver = root / "bin" / server / "kube-apiserver"
        self.models = root / "models"
        self.data = root / "data"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Cache:
        """`$SOPERATOR_CACHE`, or `~/.cache/soperator-stack`."""
        default = Path.home() / ".cache" / "soperator-stack"
        return cls(_folder(environ, "SOPERATOR_CACHE", default))

    @property
    def workloads_venv(self) -> Path:
        """Python environment of the jobs, keyed by their lock file."""
        lock = (CHECKOUT / "requirements-workloads.lock").read_bytes()
        return self.root / f"workloads-venv-{hashlib.sha256(lock).hexdigest()[:12]}"


class Ports:
    """Loopback ports of the embedded cloud."""

    def __init__(self, base: int) -> None:
        self.base = self.nebius_api = base
        self.kube_apiserver = base + 3
        self.slurmctld = base + 4
        self.slurmdbd = base + 5
        self.mariadb = base + 6
        self.object_storage = base + 7
        self.come_up = base + 10
        """Of the API server of `soperator doctor --sources`."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> Ports:
        """`$SOPERATOR_LOCAL_PORT_BASE`, or 17800."""
        text = environ.get(PORT_SETTING) or str(_DEFAULT_PORT_BASE)
        if not text.isdecimal() or not 1024 <= int(text) <= 65536 - _PORTS:
            raise UserError(
                f"{PORT_SETTING}: '{text}' is no port base; "
                f"a number from 1024 to {65536 - _PORTS}: {_PORTS} ports from it are used"
            )
        return cls(int(text))

    def slurmd(self, index: int) -> int:
        """Port of the worker with this ordinal, counted over all nodesets."""
        if not 0 <= index < _PORTS - 20:
            raise UserError(
                f"worker {index}: the embedded cloud runs at most {_PORTS - 20} workers; "
                "declare fewer nodes in nodes.workers"
            )
        return self.base + 20 + index


LISTENS: Final = "0A"
ESTABLISHED: Final = "01"
"""A socket that its process has closed belongs to uid 0 in the tables, and is in another state."""


def tcp_sockets(state: str) -> list[tuple[str, str, int]]:
    """Own end, far end and owner of each TCP socket here in a state (proc_pid_net(5))."""
    tables = [each for each in map(Path, ("/proc/net/tcp", "/proc/net/tcp6")) if each.exists()]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()]
    return [(row[1], row[2], int(row[7])) for row in rows if row[3] == state]


def tcp_ends(host: str, port: int) -> tuple[str, ...]:
    """How the name of whoever gets a connection to an address ends in the tables.

    It is that address or any; one of IPv4 ends as in the table of IPv4 where its socket is of IPv6.
    """
    found = {socket.inet_pton(each[0], str(each[4][0])) for each in socket.getaddrinfo(host, port)}
    names = ["".join(f"{word:08X}" for word in memoryview(each).cast("I")) for each in found]
    return tuple(f"{each}:{port:04X}" for name in names for each in (name, "0" * len(name)))


def listeners(host: str, port: int) -> set[int]:
    """Users of this machine who would get a connection to an address."""
    ends = tcp_ends(host, port)
    return {uid for own, _, uid in tcp_sockets(LISTENS) if own.endswith(ends)}


def told_owner(port: int, far_port: int = 0) -> int | None:
    """Who has a connection of two ports of 127.0.0.1, or listens at the first; None: not told.

    One question to the kernel; each read of a table takes it 5 ms. sock_diag(7): family 4, message
    20; after a header of 16 bytes it is inet_diag_req_v2, or inet_diag_msg with the state at 1
    (1: ESTABLISHED, 10: LISTEN) and the owner at 64.
    """
    host, far = (socket.inet_aton("127.0.0.1" if each else "0.0.0.0") for each in (port, far_port))
    # Of any interface and any cookie.
    ask = (socket.AF_INET, socket.IPPROTO_TCP, 0, port, far_port, host, far, 2**64 - 1)
    asked = struct.pack("!BBxxIHH4s12x4s16xQ", *ask)
    with suppress(OSError, struct.error):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as kernel:
            kernel.send(struct.pack("=IHHII", 16 + len(asked), 20, 1, 0, 0) + asked)
            kind, state, uid = struct.unpack_from("=4xH11xB62xI", kernel.recv(4096))
        return uid if (kind, state) == (20, 1 if far_port else 10) else None
    return None


def _folder(environ: Mapping[str, str], name: str, default: Path) -> Path:
    text = environ.get(name)
    if not text:
        return default
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise UserError(f"{name}: '{text}' is not absolute; give the full path of a folder")
    return path
