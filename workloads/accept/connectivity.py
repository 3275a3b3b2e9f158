"""Whether every pair of ranks reaches each other, and which pair is slower than its kind.

Owns the order of pairs: in each round every rank has at most one partner, so all links are used
at once and n ranks need n - 1 rounds, not n(n-1)/2.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.accept.gates import Gates
from workloads.accept.nodes import Node, name_of, nodes_of
from workloads.accept.outcome import Check, fact, hold, not_run
from workloads.common.dist import World

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

    def to_json(self) -> dict[str, Any]:
        """Return the pair as plain values."""
        return asdict(self)


def rounds(ranks: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds in which every pair of ranks meets once (the circle method)."""
    circle: list[int | None] = list(ranks)
    if len(circle) % 2:
        circle.append(None)
    found: list[list[tuple[int, int]]] = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        couples = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append(
            [
                (min(one, other), max(one, other))
                for one, other in couples
                if one is not None and other is not None
            ]
        )
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def measure(world: World, elements: int = _ELEMENTS) -> list[Pair]:
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
    sent = torch.full((elements,), float(world.rank), device=world.device)
    got = torch.empty_like(sent)
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
    is_right = bool((got == float(peer)).all())
    return Pair(one=one, other=other, is_right=is_right, gb_per_s=sent.numel() * 4 / best / 1e9)


def judge(
    pairs: Sequence[Pair], nodes: Sequence[Node], world_size: int, gates: Gates
) -> list[Check]:
    """Return: all nodes and pairs were reached, and no pair is slow for its kind."""
    reached = nodes_of(nodes, [0, *(rank for pair in pairs for rank in (pair.one, pair.other))])
    right = [pair for pair in pairs if pair.is_right]
    wanted = world_size * (world_size - 1) // 2
    wrong = [f"{pair.one}-{pair.other}" for pair in pairs if not pair.is_right]
    everywhere = tuple(node.name for node in nodes)
    said = f"{len(right)} of {wanted} pairs" + (f"; wrong: {', '.join(wrong[:8])}" if wrong else "")
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
            len(right) == wanted,
            subject=f"{len(right)} of {wanted} pairs",
            nodes=nodes_of(
                nodes,
                [rank for pair in pairs if not pair.is_right for rank in (pair.one, pair.other)],
            ),
            reason=said,
        ),
    ]
    limit = gates.limit("connectivity.pair_share")
    if limit is None or not pairs:
        return checks
    for kind, members in _kinds(pairs, nodes).items():
        best = max(pair.gb_per_s for pair in members)
        slow = min(members, key=lambda pair: pair.gb_per_s)
        bad = [pair for pair in members if not limit.holds(pair.gb_per_s / best)]
        blamed = _blamed(bad, nodes) if bad else ()
        said = ", ".join(f"{pair.one}-{pair.other} {pair.gb_per_s:.2f} GB/s" for pair in bad[:4])
        checks.append(
            hold(
                "connectivity.pair_share",
                slow.gb_per_s / best,
                limit,
                subject=f"slowest pair {kind}: ranks {slow.one} and {slow.other}",
                nodes=blamed,
                context={"gb_per_s": slow.gb_per_s, "fastest_gb_per_s": best},
                reason=f"{said}; the fastest has {best:.2f}" if bad else None,
            )
        )
    return checks


def missing(world_size: int) -> list[Check]:
    """Return what a run on one rank can say of pairs: nothing."""
    assert world_size == 1
    return [not_run("connectivity.pairs", "one rank has no partner", subject="0 of 0 pairs")]


def _kinds(pairs: Sequence[Pair], nodes: Sequence[Node]) -> dict[str, list[Pair]]:
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        is_inside = name_of(nodes, pair.one) == name_of(nodes, pair.other)
        kinds.setdefault("inside nodes" if is_inside else "between nodes", []).append(pair)
    return kinds


def _blamed(bad: Sequence[Pair], nodes: Sequence[Node]) -> tuple[str, ...]:
    """The nodes that are in every slow pair; where no node is in all, those of all of them."""
    sets = [set(nodes_of(nodes, (pair.one, pair.other))) for pair in bad]
    common = set.intersection(*sets)
    return tuple(sorted(common or set.union(*sets)))
