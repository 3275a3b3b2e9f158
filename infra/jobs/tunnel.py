"""A port of this machine that leads to a server behind the login node, and comes back when lost.

Owns the connection that it opens. While it is lost every request is answered 503 in the error form
of OpenAI's API, so that whoever asks can say why. Listens on 127.0.0.1 alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Final

import paramiko

from infra.jobs.errors import JobsError
from infra.jobs.ssh import Connection, ConnectionLostError, Endpoint

_HOST: Final = "127.0.0.1"
_LOOK_EVERY_S: Final = 0.5
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0
_PATIENCE_S: Final = 5.0
"""For the other side of a thing that ends."""
_CHUNK_BYTES: Final = 1 << 16

_LOST: Final = (OSError, EOFError, paramiko.SSHException)
"""What paramiko raises of a connection that is gone."""


class Tunnel:
    """Open from its making until `close`."""

    def __init__(
        self, login: Endpoint, host: str, port: int, *, say: Callable[[str], None]
    ) -> None:
        self._target = (host, port)
        self._say = say
        self._connection = Connection(login)
        self._lost: str | None = None
        self._over = threading.Event()
        self._look = threading.Event()
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=work, daemon=True, name=f"tunnel-{work.__name__}")
            for work in (self._accept, self._keep)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def url(self) -> str:
        """The server's API as this machine reaches it."""
        return f"http://{_HOST}:{self.port}/v1"

    def close(self) -> None:
        """Ends the listener, every connection through it, and the SSH session."""
        self._over.set()
        self._look.set()
        # A close alone does not wake up who waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._connection.close()
        for thread in self._threads:
            thread.join(_PATIENCE_S)  # one may wait for a login node that does not answer

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._over.is_set():
                    # Such as too many open files: the next one may come through.
                    self._say(f"the tunnel could not take a connection: {error}")
                    self._over.wait(_FIRST_PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """One connection of this machine from its start to its end."""
        with client:
            try:
                if self._lost is not None:
                    raise ConnectionLostError(self._lost)
                channel = self._connection.forward(*self._target)
            except JobsError as error:
                if isinstance(error, ConnectionLostError):
                    self._look.set()
                with contextlib.suppress(OSError):
                    _refuse(client, str(error))
                return
            back = threading.Thread(target=_pump_back, args=(channel, client), daemon=True)
            back.start()
            _pump(client, channel)
            back.join()
            with contextlib.suppress(*_LOST):
                channel.close()

    def _keep(self) -> None:
        """Opens a lost connection again, with longer and longer pauses, until the end."""
        pause_s = _FIRST_PAUSE_S
        while not self._over.is_set():
            if self._connection.is_open:
                self._look.wait(_LOOK_EVERY_S)
                self._look.clear()
                continue
            if self._lost is None:
                self._lost = f"the SSH tunnel to {self._connection.endpoint} is lost; reconnecting"
                self._say(self._lost)
            try:
                self._connection.reopen()
            except JobsError as error:
                self._lost = f"the SSH tunnel is lost; reconnecting: {error}"
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if self._over.is_set():
                self._connection.close()
                return
            self._lost, pause_s = None, _FIRST_PAUSE_S
            self._say("the SSH tunnel is back")


def _pump(client: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(*_LOST):
        while data := client.recv(_CHUNK_BYTES):
            channel.sendall(data)
        channel.shutdown_write()


def _pump_back(channel: paramiko.Channel, client: socket.socket) -> None:
    with contextlib.suppress(*_LOST):
        while data := channel.recv(_CHUNK_BYTES):
            client.sendall(data)
    # Whoever asks is told that nothing more comes, and `_pump` that nobody listens.
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def _refuse(client: socket.socket, reason: str) -> None:
    client.settimeout(_PATIENCE_S)
    client.recv(_CHUNK_BYTES)
    error = {"message": reason, "type": "server_error", "param": None, "code": "tunnel_lost"}
    body = json.dumps({"error": error}).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    client.sendall(head.encode() + body)
    client.shutdown(socket.SHUT_WR)
    while client.recv(_CHUNK_BYTES):
        pass
