"""The node groups of a stack with their config keys; nodes and boot disks are priced from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cost.component import Input
from stacks.node_spec import NodeGroupSpec, WorkerSpec
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One node group under the name and the config key that its user knows it by."""

    label: str
    key: str
    spec: NodeGroupSpec

    @property
    def nodeset(self) -> str | None:
        """Name of the nodeset, where the group is one."""
        return self.spec.name if isinstance(self.spec, WorkerSpec) else None

    @property
    def is_fixed(self) -> bool:
        """Whether the number of nodes never changes."""
        return self.spec.min_nodes == self.spec.max_nodes

    @property
    def count_keys(self) -> tuple[str, ...]:
        """Keys of the number of nodes: `nodes` where it is fixed."""
        if self.is_fixed:
            return (f"{self.key}.nodes",)
        return (f"{self.key}.min_nodes", f"{self.key}.max_nodes")

    @property
    def count(self) -> str:
        """Number of nodes as printed, such as `3..9`."""
        spec = self.spec
        return str(spec.min_nodes) if self.is_fixed else f"{spec.min_nodes}..{spec.max_nodes}"

    @property
    def count_input(self) -> Input:
        """Number of nodes as an input of a formula."""
        return Input(name="nodes", value=self.count, source=", ".join(self.count_keys))


def groups(spec: StackSpec) -> Iterator[Group]:
    """Every node group, in the order of the bill."""
    for worker in spec.nodes.workers:
        yield Group(label=worker.name, key=f"nodes.workers[{worker.name}]", spec=worker)
    yield Group(label="system", key="nodes.system", spec=spec.nodes.system)
    yield Group(label="controller", key="nodes.controller", spec=spec.nodes.controller)
    yield Group(label="login", key="nodes.login", spec=spec.nodes.login)
    if spec.nodes.accounting is not None:
        yield Group(label="accounting", key="nodes.accounting", spec=spec.nodes.accounting)
