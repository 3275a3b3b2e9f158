"""What each InfiniBand port writes to the next node's, by ib_write_bw of perftest.

Owns the order: of one device at a time, every node serves and writes to the next node, so that each
port sends and receives at its full rate. A collective can hide a slow port; this cannot.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from workloads.accept.gates import Gates
from workloads.accept.nodes import Node
from workloads.accept.outcome import Check, hold, not_run
from workloads.accept.readiness import NodeFacts
from workloads.common.dist import World
from workloads.common.exit_codes import WorkloadError

PROGRAM: Final = "ib_write_bw"
ANSWER_S = 30.0
"""Longest that a client looks for the next node's server."""
_RUN_S: Final = 60
_PAUSE_S: Final = 0.2
_SIZE: Final = 65536
_NO_SERVER: Final = re.compile(r"[Cc]ouldn't connect|Connection refused")
# #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]
_HEAD: Final = re.compile(r"BW average\[Gb/sec\]")
_ROW: Final = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+(?P<average>[\d.]+)\s+[\d.]+\s*$", re.MULTILINE)


class WireError(WorkloadError):
    """The program printed no rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One port writing to the port of the same name on another node."""

    device: str
    one: str
    other: str
    gbit_per_s: float | None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the wire as plain values."""
        return asdict(self)


def devices_of(facts: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return the InfiniBand devices that every node has up."""
    ups = [
        {port.device for port in node.ports if (port.link_layer, port.state) == _UP}
        for node in facts
    ]
    return tuple(sorted(set.intersection(*ups))) if ups else ()


_UP: Final = ("InfiniBand", "ACTIVE")


def measure(
    world: World, nodes: Sequence[Node], devices: Sequence[str], folder: Path
) -> list[Wire]:
    """Return each node's ports to the next node, on every rank; the first rank of a node runs."""
    index = next((i for i, node in enumerate(nodes) if node.ranks[0] == world.rank), None)
    found: list[Wire] = []
    for device in devices:
        server, port = None, None
        if index is not None:
            port = _free_port()
            server = _start(folder, device, port)
        try:
            ports = [each for each in world.gather(port) if each is not None]
            mine = None
            if index is not None:
                other = (index + 1) % len(nodes)
                mine = _write(folder, device, nodes[index].name, nodes[other].name, ports[other])
            found += [each for each in world.gather(mine) if each is not None]
        finally:
            if server is not None:
                server.kill()
                server.wait()
    return found


def parse(text: str) -> float:
    """Return the average rate in Gbit/s that ib_write_bw --report_gbits printed."""
    rows = _ROW.findall(text)
    if not rows or not _HEAD.search(text):
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise WireError(f"{PROGRAM}: no rate in Gb/sec; its last line: {last.strip()}")
    return float(rows[-1])


def judge(wires: Sequence[Wire], gates: Gates) -> list[Check]:
    """Return whether every port has its rate; the nodes of those that have not are named."""
    silent = [each for each in wires if each.gbit_per_s is None]
    checks = [
        not_run(
            "connectivity.wires",
            f"{each.device} {each.one} to {each.other}: {each.error}",
            subject=f"{len(silent)} of {len(wires)} ports",
            nodes=(each.one, each.other),
        )
        for each in silent[:1]
    ]
    rates = {each: each.gbit_per_s / 8 for each in wires if each.gbit_per_s is not None}
    limit = gates.limit("connectivity.wires")
    if limit is None or not rates:
        return checks
    slowest = min(rates, key=lambda each: rates[each])
    bad = [each for each in rates if not limit.holds(rates[each])]
    said = ", ".join(
        f"{each.device} {each.one} to {each.other} {each.gbit_per_s:.0f} Gbit/s" for each in bad[:4]
    )
    return [
        *checks,
        hold(
            "connectivity.wires",
            rates[slowest],
            limit,
            subject=f"slowest of {len(rates)} ports: {slowest.device}, {slowest.one} to "
            f"{slowest.other}",
            nodes=sorted({name for each in bad for name in (each.one, each.other)}),
            reason=f"{said}: look at its cable and ibstat" if bad else None,
        ),
    ]


def _start(folder: Path, device: str, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        _words(folder, device, port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _write(folder: Path, device: str, one: str, other: str, port: int) -> Wire:
    """What the client says; a server that does not listen yet is asked again."""
    end = time.monotonic() + ANSWER_S
    words = [*_words(folder, device, port), other]
    while True:
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            error = f"{PROGRAM} did not end in {_RUN_S} s"
            return Wire(device=device, one=one, other=other, gbit_per_s=None, error=error)
        text = done.stdout + done.stderr
        if not _NO_SERVER.search(text) or time.monotonic() >= end:
            break
        time.sleep(_PAUSE_S)
    try:
        return Wire(device=device, one=one, other=other, gbit_per_s=parse(text))
    except WireError as why:
        return Wire(device=device, one=one, other=other, gbit_per_s=None, error=str(why))


def _words(folder: Path, device: str, port: int) -> list[str]:
    # -F: a clock of the CPU that changes is no error.
    return [
        str(folder / PROGRAM),
        *("-d", device, "-p", str(port), "-s", str(_SIZE), "-F", "--report_gbits"),
    ]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
