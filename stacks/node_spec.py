"""Node groups of a stack by role: platform, preset, boot disk, counts and how they are billed.

Owns names, types, units and defaults; `StackSpec` (spec.py) holds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stacks.storage_spec import DiskType


class Billing(StrEnum):
    """How the provider bills a node."""

    ON_DEMAND = "on-demand"
    PREEMPTIBLE = "preemptible"
    RESERVED = "reserved"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootDiskSpec:
    """Boot disk of every node of a group."""

    size_gib: int
    type: DiskType = DiskType.NETWORK_SSD


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroupSpec:
    """One mk8s node group of equal nodes."""

    platform: str
    preset: str
    boot_disk: BootDiskSpec
    min_nodes: int
    max_nodes: int
    """Equal to min_nodes for a fixed group; `nodes: N` in the file sets both."""
    billing: Billing = Billing.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec(NodeGroupSpec):
    """One nodeset: a node group whose nodes run slurmd, called `<name>-<ordinal>` in Slurm."""

    name: str
    infiniband_fabric: str | None = None
    shared_memory_gib: int = 64
    features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesSpec:
    """Node groups by role."""

    system: NodeGroupSpec
    controller: NodeGroupSpec
    login: NodeGroupSpec
    workers: tuple[WorkerSpec, ...]
    accounting: NodeGroupSpec | None = None
