"""What to ask the calculator for one stack: one resource for each price that it is billed by.

Pure: spec -> requests, each with the SKUs that its answer tells. Reserved nodes are left out: the
calculator estimates list prices. Sizes are large, because an answer has a limited number of digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cost.sku import node_sku
from stacks.catalog import STRIPED_DISK_STEP_GIB, find_preset
from stacks.node_spec import Billing, MachineSpec
from stacks.spec import StackSpec
from stacks.storage_spec import DiskType, FilesystemType

_VOLUME_GIB: Final = 1000 * STRIPED_DISK_STEP_GIB
"""A multiple of what striped disks come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One resource to estimate."""

    message: str
    """Full name of the request that would create it."""
    fields: dict[str, Any]
    """The request in the proto's field names."""
    counts: dict[str, int]
    """SKU -> how many of its unit the resource has."""


def wanted(spec: StackSpec) -> tuple[Wanted, ...]:
    """Everything that the stack's nodes, disks and filesystems are billed by, once each."""
    project = spec.nebius.project_id
    found: dict[str, Wanted] = {}
    for group in _groups(spec):
        if group.billing is not Billing.RESERVED:
            key = f"{group.platform}/{group.preset}/{group.billing}"
            found.update((key, one) for one in _instance(group, project))
        disk = group.boot_disk.type
        found[f"disk/{disk}"] = _volume("Disk", disk, project)
    if spec.nfs is not None:
        data = spec.nfs.data_disks.type
        found[f"disk/{data}"] = _volume("Disk", data, project)
    for type_ in _filesystem_types(spec):
        found[f"filesystem/{type_}"] = _volume("Filesystem", type_, project)
    return tuple(found.values())


def _groups(spec: StackSpec) -> Iterator[MachineSpec]:
    nodes = spec.nodes
    yield from nodes.workers
    yield from (nodes.system, nodes.controller, nodes.login)
    if nodes.accounting is not None:
        yield nodes.accounting
    if spec.nfs is not None:
        yield spec.nfs


def _filesystem_types(spec: StackSpec) -> Iterator[FilesystemType]:
    storage = spec.storage
    yield storage.jail.type
    yield storage.controller_spool.type
    if storage.accounting is not None:
        yield storage.accounting.type
    yield from (mount.type for mount in storage.submounts)


def _instance(group: MachineSpec, project: str) -> Iterator[Wanted]:
    """The instance behind a node group; none where the catalogue does not know its parts."""
    preset = find_preset(group.platform, group.preset)
    if preset is None:
        return
    resources = {"platform": group.platform, "preset": group.preset}
    fields: dict[str, Any] = {"resources": resources}
    if group.billing is Billing.PREEMPTIBLE:
        fields["preemptible"] = {"on_preemption": "STOP"}
    parts = {"gpu": preset.gpus, "vcpu": preset.vcpus, "ram": preset.memory_gib}
    yield Wanted(
        message="nebius.compute.v1.CreateInstanceRequest",
        fields={"metadata": _metadata(project, "instance"), "spec": fields},
        counts={
            node_sku(group.platform, part, group.billing): count
            for part, count in parts.items()
            if count
        },
    )


def _volume(kind: str, type_: DiskType | FilesystemType, project: str) -> Wanted:
    """A disk or a filesystem of one type."""
    return Wanted(
        message=f"nebius.compute.v1.Create{kind}Request",
        fields={
            "metadata": _metadata(project, kind.lower()),
            "spec": {"size_gibibytes": _VOLUME_GIB, "type": type_.upper().replace("-", "_")},
        },
        counts={f"{kind.lower()}/{type_}": _VOLUME_GIB},
    )


def _metadata(project: str, kind: str) -> dict[str, str]:
    return {"parent_id": project, "name": f"estimate-{kind}"}
