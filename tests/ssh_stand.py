"""A login node in this process: opens TCP connections for one key, and can be lost and come back.

Stands in for sshd where a test must cut a connection in the middle; runs no command.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import paramiko.common

from infra.clients.ssh import Endpoint


class _Door(paramiko.ServerInterface):
    """Lets the one key in, and forwards wherever it is asked to."""

    def __init__(self, allowed: paramiko.PKey) -> None:
        self._allowed = allowed
        self.targets: dict[int, tuple[str, int]] = {}

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        right = key.asbytes() == self._allowed.asbytes()
        return paramiko.common.AUTH_SUCCESSFUL if right else paramiko.common.AUTH_FAILED

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        try:
            socket.create_connection(destination, timeout=5).close()
        except OSError:
            return paramiko.common.OPEN_FAILED_CONNECT_FAILED
        self.targets[chanid] = destination
        return paramiko.common.OPEN_SUCCEEDED


class SshStand:
    """One login node; `lose` ends every session and refuses new ones until `come_back`."""

    def __init__(self, folder: Path) -> None:
        key = paramiko.RSAKey.generate(2048)
        identity = folder / "identity"
        key.write_private_key_file(str(identity))
        self._user_key = key
        self._host_key = paramiko.RSAKey.generate(2048)
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint(
            host="127.0.0.1",
            port=self._listener.getsockname()[1],
            host_key=f"{self._host_key.get_name()} {self._host_key.get_base64()}",
            identity=identity,
        )
        self._listen()

    @property
    def num_sessions(self) -> int:
        """Sessions that came since it is up."""
        return len(self._transports)

    def lose(self) -> None:
        """End all sessions at once; nothing listens any more."""
        self._stop_listening()
        for transport in self._transports:
            transport.close()
        self._transports.clear()

    def come_back(self) -> None:
        """Take sessions again, on the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.endpoint.port))
        self._listen()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            transport = paramiko.Transport(client)
            transport.add_server_key(self._host_key)
            self._transports.append(transport)
            threading.Thread(target=self._serve, args=(transport,), daemon=True).start()

    def _serve(self, transport: paramiko.Transport) -> None:
        door = _Door(self._user_key)
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            transport.start_server(server=door)
            while transport.is_active():
                channel = transport.accept(1)
                if channel is not None:
                    target = socket.create_connection(door.targets[channel.chanid])
                    for one, other in ((channel, target), (target, channel)):
                        threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(source: socket.socket | paramiko.Channel, sink: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(OSError, paramiko.SSHException):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def login_node(folder: Path) -> Iterator[SshStand]:
    """A login node that is up, and gone afterwards."""
    stand = SshStand(folder)
    try:
        yield stand
    finally:
        stand.lose()
