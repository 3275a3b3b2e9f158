"""Shared filesystems (jail, controller spool, accounting, submounts), NFS server and registry.

The NFS server is a machine outside the kube cluster, whose export the pods mount.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pulumi

from infra.components.base import Part, address_of
from infra.components.kube_cluster import Network
from infra.render.names import filesystems
from infra.render.nodes import (
    IMAGE_FAMILY,
    address_spec,
    boot_disk_noun,
    disk_spec,
    filesystem_spec,
    machine_spec,
    nfs_user_data,
)
from stacks.spec import StackSpec
from stacks.spec.nodes import NfsSpec


class Filesystems(Part):
    """One Nebius filesystem per declaration; an existing one is used by its id."""

    ids: Mapping[str, pulumi.Input[str]]
    """Mount tag -> filesystem id."""

    def __init__(self, spec: StackSpec, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, opts)
        ids: dict[str, pulumi.Input[str]] = {}
        for tag, declared in filesystems(spec):
            if declared.existing_id is not None:
                ids[tag] = declared.existing_id
                continue
            wanted = filesystem_spec(declared)
            ids[tag] = self._child("nebius:compute/v1:Filesystem", tag, wanted, self._kept()).id
        self.ids = ids
        self.register_outputs({"ids": ids})


class Registry(Part):
    """One registry of the project; made only where the stack declares it."""

    address: pulumi.Output[str]
    """What image names start with."""

    def __init__(self, spec: StackSpec, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, opts)
        wanted = {"description": f"images of {spec.name}"}
        registry = self._child("nebius:registry/v1:Registry", "images", wanted, self._kept())
        self.address = registry.status.apply(lambda status: status["registry_fqdn"])
        self.register_outputs({"address": self.address})


_DISK: Final = "nebius:compute/v1:Disk"
# What the machine starts as. cloud-init looks at its data at the first start of an instance only,
# and the API changes hardware of a stopped one: a new instance has it, on the same data disks.
_FIXED: Final = [
    "spec.cloud_init_user_data",
    "spec.resources",
    "spec.boot_disk",
    "spec.secondary_disks",
]


class Instance(Part):
    """One machine; its private address and its data disks outlive a change of the machine."""

    address: pulumi.Output[str]
    """Private IPv4 address."""

    def __init__(
        self,
        spec: StackSpec,
        machine: NfsSpec,
        network: Network,
        user_data: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts, f"{spec.name}-nfs")
        place = address_spec(network.subnet_id)
        allocation = self._child("nebius:vpc/v1:Allocation", "address", place)
        first, more = machine.boot_disk, machine.data_disks
        image = disk_spec(first.type, first.size_gib, image_family=IMAGE_FAMILY)
        boot = self._child(_DISK, boot_disk_noun(first.type), image)
        wanted = disk_spec(more.type, more.size_gib)
        disks = [
            self._child(_DISK, f"data-{index}", wanted, self._kept()) for index in range(more.count)
        ]
        made = machine_spec(
            machine,
            subnet_id=network.subnet_id,
            allocation_id=allocation.id,
            boot_disk_id=boot.id,
            data_disk_ids=[disk.id for disk in disks],
            user_data=pulumi.Output.secret(user_data),
        )
        anew = pulumi.ResourceOptions(replace_on_changes=_FIXED)
        self._child("nebius:compute/v1:Instance", "", made, anew)
        self.address = address_of(allocation)
        self.register_outputs({"address": self.address})


class NfsServer(Part):
    """The machine with its data disks, which a destroy keeps unless the stack purges."""

    address: pulumi.Output[str]
    """Private IPv4 address, the same for a new machine on the old disks."""

    def __init__(
        self,
        spec: StackSpec,
        nfs: NfsSpec,
        network: Network,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, opts)
        user_data = network.private_cidrs().apply(lambda found: nfs_user_data(spec, found))
        self.address = Instance(spec, nfs, network, user_data, self._after()).address
        self.register_outputs({"address": self.address})
