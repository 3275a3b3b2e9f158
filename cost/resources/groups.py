"""The node groups of a stack with their config keys; nodes and boot disks are priced from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cost.component import Input
from stacks.node_spec import NodeGroupSpec, WorkerSpec
from stacks.spec import StackSpec

_ROLES: Final = ("system", "controller", "login", "accounting", "nfs")
_ENDS: Final = ("min_nodes", "max_nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One node group under the name and the config key that its user knows it by."""

    label: str
    key: str
    spec: NodeGroupSpec
    min_nodes: int
    """Least nodes that are paid for; none of a nodeset of a paused stack."""
    max_nodes: int
    is_paused: bool

    @property
    def nodeset(self) -> str | None:
        """Name of the nodeset, where the group is one."""
        return self.spec.name if isinstance(self.spec, WorkerSpec) else None

    @property
    def is_fixed(self) -> bool:
        """Whether the number of nodes never changes."""
        return self.min_nodes == self.max_nodes

    @property
    def count_keys(self) -> tuple[str, ...]:
        """Keys of the number of nodes: `nodes` where it is fixed, and the pause where it is on."""
        ends = ("nodes",) if self.spec.min_nodes == self.spec.max_nodes else _ENDS
        paused = ("nodes.paused",) if self.is_paused else ()
        return (*(f"{self.key}.{end}" for end in ends), *paused)

    @property
    def count(self) -> str:
        """Number of nodes as printed, such as `3..9`."""
        return str(self.min_nodes) if self.is_fixed else f"{self.min_nodes}..{self.max_nodes}"

    @property
    def count_input(self) -> Input:
        """Number of nodes as an input of a formula."""
        return Input(name="nodes", value=self.count, source=", ".join(self.count_keys))


def groups(spec: StackSpec) -> Iterator[Group]:
    """Every node group, in the order of the bill."""
    nodes = spec.nodes
    declared: list[tuple[str, str, NodeGroupSpec | None]] = [
        *((worker.name, f"nodes.workers[{worker.name}]", worker) for worker in nodes.workers),
        *((role, f"nodes.{role}", getattr(nodes, role)) for role in _ROLES),
    ]
    for label, key, group in declared:
        if group is not None:
            least, most = nodes.counts(group)
            yield Group(
                label=label,
                key=key,
                spec=group,
                min_nodes=least,
                max_nodes=most,
                is_paused=(least, most) != (group.min_nodes, group.max_nodes),
            )
