"""Every group of equal machines of a stack with its key: node_groups(spec), machines(spec)."""

from __future__ import annotations

from collections.abc import Iterator

from stacks.node_spec import MachineSpec, NodeGroupSpec
from stacks.spec import StackSpec


def node_groups(spec: StackSpec) -> Iterator[tuple[str, str, NodeGroupSpec]]:
    """Role, path in the stack and node group, in the order of the file."""
    yield "system", "nodes.system", spec.nodes.system
    yield "controller", "nodes.controller", spec.nodes.controller
    yield "login", "nodes.login", spec.nodes.login
    if spec.nodes.accounting is not None:
        yield "accounting", "nodes.accounting", spec.nodes.accounting
    if spec.nodes.nfs is not None:
        yield "nfs", "nodes.nfs", spec.nodes.nfs
    for index, worker in enumerate(spec.nodes.workers):
        yield "worker", f"nodes.workers[{index}]", worker


def machines(spec: StackSpec) -> Iterator[tuple[str, MachineSpec]]:
    """Path in the stack and hardware of everything that runs, in the cluster and beside it."""
    for _, path, group in node_groups(spec):
        yield path, group
    if spec.nfs is not None:
        yield "nfs", spec.nfs
