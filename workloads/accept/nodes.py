"""Which node holds which ranks, with what memory: the table on every certificate."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.common.dist import World

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine of the run."""

    name: str
    role: str
    """`master` where rank 0 is, else `worker`."""
    ranks: tuple[int, ...]
    device: str
    gpus: int
    """GPUs that its ranks use."""
    gpu_memory_gib: float | None
    """Of one GPU."""

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {**asdict(self), "ranks": list(self.ranks)}


def node_name() -> str:
    """Return the name that the scheduler knows this machine by, else its host name."""
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("NODE_NAME") or socket.gethostname()


def device_of(world: World) -> tuple[str, float | None]:
    """Return the name and the memory in GiB of this rank's GPU; (`cpu`, None) without one."""
    if world.device.type != "cuda":
        return "cpu", None
    import torch

    properties = torch.cuda.get_device_properties(world.device)
    return properties.name, properties.total_memory / GIB


def gather_nodes(world: World) -> tuple[Node, ...]:
    """Return the nodes of all ranks, in the order of their first ranks, on every rank."""
    device, memory = device_of(world)
    return table(world.gather((node_name(), device, memory)))


def table(ranks: Sequence[tuple[str, str, float | None]]) -> tuple[Node, ...]:
    """Return the nodes from (name, device, GiB) of each rank in rank order."""
    places: dict[str, list[int]] = {}
    for rank, (name, _, _) in enumerate(ranks):
        places.setdefault(name, []).append(rank)
    return tuple(
        Node(
            name=name,
            role="worker" if index else "master",
            ranks=tuple(found),
            device=ranks[found[0]][1],
            gpus=sum(ranks[rank][2] is not None for rank in found),
            gpu_memory_gib=ranks[found[0]][2],
        )
        for index, (name, found) in enumerate(places.items())
    )


def name_of(nodes: Sequence[Node], rank: int) -> str:
    """Return the node that holds `rank`."""
    return next(node.name for node in nodes if rank in node.ranks)


def nodes_of(nodes: Sequence[Node], ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the nodes that hold any of `ranks`."""
    return tuple(node.name for node in nodes if set(node.ranks) & set(ranks))
