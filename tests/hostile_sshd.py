"""A login node that means harm, as a process: its key is the pinned one, what it says is not.

Prints its port and public host key, then serves until it is killed.
Usage: python -m tests.hostile_sshd HARM
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import paramiko
import paramiko.common

_DRIP_S = 0.05
_LINES = b"\n" * (32 << 10)
_GIB = 1 << 30


def _never() -> None:
    threading.Event().wait()


def _drip(send: Callable[[bytes], object], byte: bytes) -> None:
    while True:
        send(byte)
        time.sleep(_DRIP_S)


class _Door(paramiko.ServerInterface):
    def __init__(self, harm: str) -> None:
        self._harm = harm

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        if self._harm == "silent authentication":
            _never()
        if self._harm == "no authentication":
            raise EOFError  # which ends the connection
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        if self._harm == "silent start":
            _never()
        threading.Thread(target=self._answer, args=(channel,), daemon=True).start()
        return True

    def _answer(self, channel: paramiko.Channel) -> None:
        time.sleep(0.1)  # after the word that it was started
        with contextlib.suppress(OSError):
            if self._harm in {"line breaks", "line breaks of errors"}:
                is_error = self._harm.endswith("errors")
                send = channel.sendall_stderr if is_error else channel.sendall
                for _ in range(_GIB // len(_LINES)):
                    send(_LINES)
            elif self._harm == "dripping answer":
                _drip(channel.sendall, b"x")
            elif self._harm == "no end":
                channel.sendall(b"12\n")
                _never()
            elif self._harm == "output before input":
                channel.sendall(b"x" * (8 << 20))
                while channel.recv(1 << 16):
                    pass
            elif self._harm == "failing read":
                channel.sendall(b"the first line\n")
                channel.sendall_stderr(b"tail: error reading 'job.log': Input/output error\n")
            elif self._harm == "one long line":
                while True:
                    channel.sendall(b"x" * (32 << 10))
            channel.send_exit_status(int(self._harm == "failing read"))
            channel.close()


def _serve(client: socket.socket, harm: str, host_key: paramiko.PKey) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        if harm == "dripping banner":
            _drip(client.sendall, b"x")
        elif harm == "flooding banner":
            while True:
                client.sendall(b"x" * (1 << 16))
        elif harm == "large packet":
            client.sendall(b"SSH-2.0-x\r\n\xff\xff\xff\xf4" + bytes(12))
            while True:
                client.sendall(bytes(1 << 16))
        transport = paramiko.Transport(client)
        transport.add_server_key(host_key)
        transport.start_server(server=_Door(harm))
        transport.join()


def _clients(listener: socket.socket) -> Iterator[socket.socket]:
    while True:
        yield listener.accept()[0]


def main(harm: str) -> None:
    """Serve every connection in the same way."""
    host_key = paramiko.ECDSAKey.generate()
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], host_key.get_name(), host_key.get_base64(), flush=True)
    for client in _clients(listener):
        threading.Thread(target=_serve, args=(client, harm, host_key), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
