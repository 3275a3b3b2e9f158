"""Loopback ports for daemons of the tests: no two test processes of a machine are given the same.

A probe alone is a race: what was free for one process is free for the next until something listens.
So each port is claimed by an abstract Unix socket of its number, which ends with the process.
All lie below the ports that the kernel gives to clients, so that no connection takes one either.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Final

_SINGLE: Final = range(10000, 13000)
_BASES: Final = range(20000, 30000, 100)
"""Apart from 17800, where a person's own `local` stack listens, and from jobs' ports."""
_NODE_PORTS: Final = range(32767, 30100, -1)
"""Kubernetes' range for node ports, from its end: 30022 is the `local` stack's."""
_NUM_USED_BELOW_WORKERS: Final = 8
_NUM_WORKERS: Final = 4
_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, this process's own from now on."""
    return [_first((port,) for port in _SINGLE) for _ in range(count)]


def free_base() -> int:
    """A base for the ports of an embedded cloud of at most four workers."""
    parts = (*range(_NUM_USED_BELOW_WORKERS), *range(20, 20 + _NUM_WORKERS))
    return _first(tuple(base + part for part in parts) for base in _BASES)


def free_node_port() -> int:
    """A port of Kubernetes' range for node ports."""
    return _first((port,) for port in _NODE_PORTS)


def _first(candidates: Iterable[tuple[int, ...]]) -> int:
    """The first port of the first candidate of which nobody has any."""
    for ports in candidates:
        claim = _claim(ports[0])
        if claim is not None and all(map(_is_free, ports)):
            _claims.append(claim)
            return ports[0]
        if claim is not None:
            claim.close()
    raise AssertionError("no free port")


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0soperator-tests-port-{port}")
    except OSError:
        claim.close()
        return None
    return claim


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As servers do: connections of an ended one that wait for their end are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
