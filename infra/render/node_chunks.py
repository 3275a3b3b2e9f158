"""How the nodes of one declared group are spread over mk8s node groups: at most 100 in each. Pure.

The first group keeps the bare name and the others are called `<name>-1`, `<name>-2`: a set that
grows over 100 gets another group, and the one that it has stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stacks.catalog import NODES_PER_GROUP_MAX
from stacks.node_spec import NodeGroupSpec, NodesSpec, WorkerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One mk8s node group out of those that a declared group needs."""

    name: str
    min_nodes: int
    max_nodes: int
    """Equal to min_nodes where the group does not scale by itself."""


def chunks(name: str, nodes: NodesSpec, group: NodeGroupSpec) -> Iterator[Chunk]:
    """The node groups of one declared group, the first ones full, the last one the remainder."""
    least, most = nodes.counts(group)
    if isinstance(group, WorkerSpec) and group.created_nodes is not None and not nodes.paused:
        least = group.created_nodes
    # A paused set keeps its groups: their ids, and what hangs on them, outlive the pause.
    for index, first in enumerate(range(0, max(group.max_nodes, 1), NODES_PER_GROUP_MAX)):
        size = min(NODES_PER_GROUP_MAX, group.max_nodes - first) if most else 0
        yield Chunk(
            name=f"{name}-{index}" if index else name,
            min_nodes=min(max(least - first, 0), size),
            max_nodes=size,
        )
