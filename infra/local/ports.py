"""Loopback ports of this machine: who listens, what is free, and the words for a port in use."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

from infra.local.state import PORT_SETTING

PORT_IN_USE: Final = "PortInUse"
"""Reason of a Kubernetes condition: no waiting helps against a stranger on the port."""
_HOST: Final = "127.0.0.1"
_IN_USE: Final = "is in use by another program"


def is_listening(port: int) -> bool:
    """Whether a server listens on 127.0.0.1:port, without disturbing it by a connection."""
    # gRPC listens on an IPv6 socket that is mapped to 127.0.0.1.
    wanted = (f"0100007F:{port:04X}", f"0000000000000000FFFF00000100007F:{port:04X}")
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        lines = table.read_text().splitlines() if table.exists() else []
        if any(line.split()[1] in wanted and line.split()[3] == "0A" for line in lines):
            return True
    return False


def is_free(port: int) -> bool:
    """Whether a server could listen on 127.0.0.1:port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def in_use(port: int) -> str:
    """The refusal of one of the embedded cloud's own ports."""
    return f"port {port} {_IN_USE}; stop it or set {PORT_SETTING} to another base port"


def login_in_use(port: int) -> str:
    """The refusal of the login node's port, which the stack declares."""
    return (
        f"port {port} of {_HOST} {_IN_USE}; stop it or declare a free port as login.ssh_port, "
        "30000 to 32767"
    )


def tells_of_use(text: str) -> bool:
    """Whether a message is one of these refusals."""
    return _IN_USE in text
