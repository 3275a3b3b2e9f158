"""Whether every pair of ranks, and every InfiniBand port, reaches the other; which are slower."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from workloads.accept import collectives
from workloads.accept.collectives import Transfer
from workloads.accept.gates import Check, Gates, Node, ProgramError, fact, hold, nodes_of, not_run
from workloads.accept.readiness import UP, NodeFacts
from workloads.common.dist import World
from workloads.common.launch import free_port

TIMEOUT_S = 1800
"""Of all programs of nccl-tests together."""
_END_S: Final = 240
"""For the tasks of a step that is ended: Soperator's KillWait is 180 s."""
_STEP: Final = ("SLURM_", "SRUN_", "PMI_", "PMIX_")
"""Variables of the step that the ranks run in: another step reads them as its own options."""


def over_nodes(
    nodes: int, gpus: int, environment: Mapping[str, str] = os.environ
) -> list[str] | None:
    """Return the words that start one process a GPU on all nodes of the job; None without Slurm."""
    job, srun = environment.get("SLURM_JOB_ID"), shutil.which("srun", path=environment.get("PATH"))
    if not job or srun is None:
        return None
    # --overlap: the ranks of the suite hold the job's GPUs and CPUs, and wait.
    each = f"--ntasks-per-node={gpus} --gpus-per-node={gpus} --cpus-per-task=1"
    step = f"--jobid={job} --overlap --nodes={nodes} --ntasks={nodes * gpus} {each}"
    return [srun, *step.split(), "--kill-on-bad-exit=1"]


def run_nccl_tests(
    folder: Path,
    gpus: int,
    sizes_mb: Sequence[int],
    *,
    nodes: int = 1,
    launcher: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> list[Transfer]:
    """Return what the programs in `folder` say of `gpus` on each of `nodes`.

    Each size is a run of its own: steps by a factor would miss the largest one. With a `launcher`
    each process has one GPU.
    """
    found: list[Transfer] = []
    ranks = nodes * gpus
    own = {name: each for name, each in environment.items() if not name.startswith(_STEP)}
    if "SLURM_CONF" in environment:
        own["SLURM_CONF"] = environment["SLURM_CONF"]
    end = time.monotonic() + TIMEOUT_S
    for op, name in collectives.PROGRAMS.items():
        path = shutil.which(name, path=str(folder))
        if path is None:
            raise ProgramError(f"{folder / name}: not there; build nccl-tests there")
        for size_mb in sizes_mb:
            size = str(collectives.aligned(size_mb * 10**6, collectives.PART_BYTES * ranks))
            each = "1" if launcher else str(gpus)
            try:
                text = _output([*launcher, path, "-b", size, "-e", size, "-g", each], own, end)
            except subprocess.TimeoutExpired:
                raise ProgramError(
                    f"{path}: the programs did not end in {TIMEOUT_S} s; run it by hand, "
                    "or leave accept.collectives.nccl_tests out"
                ) from None
            found += collectives.parse(text, op=op, ranks=ranks)
    return found


def _output(words: Sequence[str], environment: Mapping[str, str], end_s: float) -> str:
    """Return what a program printed by `end_s`, a moment of time.monotonic()."""
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            return "".join(process.communicate(timeout=max(0.0, end_s - time.monotonic())))
        except subprocess.TimeoutExpired:
            # srun ends its tasks when it is asked to; killed, it leaves them on the GPUs.
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)
            raise
        finally:
            process.kill()


_ELEMENTS = 4_000_000
_REPEATS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two ranks that sent each other a message and looked at what came."""

    one: int
    other: int
    is_right: bool
    gb_per_s: float
    """Of one direction, while both send; the best of a few tries."""


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds in which every pair of ranks meets once (the circle method)."""
    # Whom the rank -1 meets has a rest.
    circle = [*ranks, *[-1] * (len(ranks) % 2)]
    half = len(circle) // 2
    found: list[list[tuple[int, int]]] = []
    for _ in range(len(circle) - 1):
        couples = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(min(each), max(each)) for each in couples if -1 not in each])
        circle.insert(1, circle.pop())
    return found


def measure_pairs(world: World, elements: int = _ELEMENTS) -> list[Pair]:
    """Return all pairs, on every rank; a link that is down ends the job with its own status."""
    mine: list[Pair] = []
    for couples in rounds(range(world.world_size)):
        for one, other in couples:
            if world.rank in (one, other):
                pair = _meet(world, one, other, elements)
                if world.rank == one:
                    mine.append(pair)
        world.barrier()
    return sorted(
        (pair for found in world.gather(mine) for pair in found),
        key=lambda pair: (pair.one, pair.other),
    )


def _meet(world: World, one: int, other: int, elements: int) -> Pair:
    import torch
    import torch.distributed as dist

    peer = other if world.rank == one else one
    message = collectives.varied(elements, world.device)
    sent, got = message + world.rank, torch.full_like(message, -1)
    best = float("inf")
    for _ in range(_REPEATS):
        world.synchronize()
        began = time.perf_counter()
        for request in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, got, peer)]
        ):
            request.wait()
        world.synchronize()
        best = min(best, time.perf_counter() - began)
    is_right = torch.equal(got, message + peer)
    return Pair(one=one, other=other, is_right=is_right, gb_per_s=sent.numel() * 4 / best / 1e9)


def judge_pairs(
    pairs: Sequence[Pair], nodes: Sequence[Node], world_size: int, gates: Gates
) -> list[Check]:
    """Return: all nodes and pairs were reached, and no pair is slow for its kind."""
    reached = nodes_of(nodes, [0, *(rank for pair in pairs for rank in (pair.one, pair.other))])
    wrong = [(pair.one, pair.other) for pair in pairs if not pair.is_right]
    right, wanted = len(pairs) - len(wrong), world_size * (world_size - 1) // 2
    everywhere = tuple(node.name for node in nodes)
    subject = f"{right} of {wanted} pairs"
    said = "; wrong: " + ", ".join(f"{one}-{other}" for one, other in wrong[:8]) if wrong else ""
    checks = [
        fact(
            "connectivity.nodes",
            len(reached) == len(nodes),
            subject=f"{len(reached)} of {len(nodes)} nodes",
            nodes=[name for name in everywhere if name not in reached],
            reason=f"no pair with {', '.join(set(everywhere) - set(reached))} was measured",
        ),
        fact(
            "connectivity.pairs",
            right == wanted,
            subject=subject,
            nodes=nodes_of(nodes, [rank for pair in wrong for rank in pair]),
            reason=subject + said,
        ),
    ]
    limit = gates.limit("connectivity.pair_share")
    if limit is None or not pairs:
        return checks
    for kind, members in _kinds(pairs, nodes).items():
        if len(members) == 1:
            continue  # the only one has no other to be held against
        best = max(pair.gb_per_s for pair in members)
        slow = min(members, key=lambda pair: pair.gb_per_s)
        bad = [pair for pair in members if not limit.holds(pair.gb_per_s / best)]
        of = [set(nodes_of(nodes, (pair.one, pair.other))) for pair in bad]
        said = ", ".join(f"{pair.one}-{pair.other} {pair.gb_per_s:.2f} GB/s" for pair in bad[:4])
        checks.append(
            hold(
                "connectivity.pair_share",
                slow.gb_per_s / best,
                limit,
                subject=f"slowest pair {kind}: ranks {slow.one} and {slow.other}",
                # Those in every slow pair; where no node is in all, those of all of them.
                nodes=sorted(set.intersection(*of) or set.union(*of)) if of else (),
                context={"gb_per_s": slow.gb_per_s, "fastest_gb_per_s": best},
                reason=f"{said}; the fastest has {best:.2f}",
            )
        )
    return checks


def _kinds(pairs: Sequence[Pair], nodes: Sequence[Node]) -> dict[str, list[Pair]]:
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kind = "inside" if len(nodes_of(nodes, (pair.one, pair.other))) == 1 else "between"
        kinds.setdefault(f"{kind} nodes", []).append(pair)
    return kinds


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One port writing to the port of the same name on another node."""

    device: str
    one: str
    other: str
    gbit_per_s: float | None
    error: str | None = None


def devices_of(facts: Sequence[NodeFacts]) -> tuple[str, ...]:
    """Return the InfiniBand devices that every node has up."""
    ups = [
        {port.device for port in node.ports if (port.link_layer, port.state) == UP}
        for node in facts
    ]
    return tuple(sorted(set.intersection(*ups))) if ups else ()


def index_of(world: World, nodes: Sequence[Node]) -> int | None:
    """Return which of `nodes` this rank is the first of; None: of none."""
    return next((i for i, node in enumerate(nodes) if node.ranks[0] == world.rank), None)


def measure_ports(
    world: World, nodes: Sequence[Node], devices: Sequence[str], folder: Path
) -> list[Wire]:
    """Return each node's ports to the next node, on every rank; the first rank of a node runs."""
    index = index_of(world, nodes)
    found: list[Wire] = []
    for device in devices:
        server, port = None, None
        if index is not None:
            port = free_port()
            words, silent = _words(folder, device, port), subprocess.DEVNULL
            server = subprocess.Popen(words, stdout=silent, stderr=silent)
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
        raise ProgramError(f"{PROGRAM}: no rate in Gb/sec; its last line: {last.strip()}")
    return float(rows[-1])


def judge_ports(wires: Sequence[Wire], gates: Gates) -> list[Check]:
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
            reason=f"{said}: look at its cable and ibstat",
        ),
    ]


def _write(folder: Path, device: str, one: str, other: str, port: int) -> Wire:
    """What the client says; a server that does not listen yet is asked again."""
    end = time.monotonic() + ANSWER_S
    found = Wire(device=device, one=one, other=other, gbit_per_s=None)
    words = [*_words(folder, device, port), other]
    while True:
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return replace(found, error=f"{PROGRAM} did not end in {_RUN_S} s")
        text = done.stdout + done.stderr
        if not _NO_SERVER.search(text) or time.monotonic() >= end:
            break
        time.sleep(_PAUSE_S)
    try:
        return replace(found, gbit_per_s=parse(text))
    except ProgramError as why:
        return replace(found, error=str(why))


def _words(folder: Path, device: str, port: int) -> list[str]:
    # -F: a clock of the CPU that changes is no error.
    return [
        str(folder / PROGRAM),
        *("-d", device, "-p", str(port), "-s", str(_SIZE), "-F", "--report_gbits"),
    ]
