"""Shared filesystems (jail, controller spool, accounting, submounts), NFS server and registry.

The NFS server is a machine outside the kube cluster, whose export the pods mount.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pulumi

from infra.components.base import child, kept
from infra.render.kube_cluster import filesystem_spec
from infra.render.names import filesystems
from infra.render.nodes import (
    IMAGE_FAMILY,
    address_spec,
    boot_disk_name,
    disk_spec,
    machine_spec,
    nfs_user_data,
)
from stacks.spec import StackSpec
from stacks.spec.nodes import MachineSpec, NfsSpec


class Filesystems(pulumi.ComponentResource):
    """One Nebius filesystem per declaration; an existing one is used by its id."""

    ids: Mapping[str, pulumi.Input[str]]
    """Mount tag -> filesystem id."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Filesystems", name, None, opts)
        ids: dict[str, pulumi.Input[str]] = {}
        for tag, declared in filesystems(spec):
            if declared.existing_id is not None:
                ids[tag] = declared.existing_id
                continue
            ids[tag] = child(
                self,
                "nebius:compute/v1:Filesystem",
                f"{name}-{tag}",
                parent_id=spec.nebius.project_id,
                spec=filesystem_spec(declared),
                opts=kept(spec),
            ).id
        self.ids = ids
        self.register_outputs({"ids": ids})


class Registry(pulumi.ComponentResource):
    """One registry of the project; made only where the stack declares it."""

    address: pulumi.Output[str]
    """What image names start with."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Registry", name, None, opts)
        registry = child(
            self,
            "nebius:registry/v1:Registry",
            f"{name}-images",
            parent_id=spec.nebius.project_id,
            spec={"description": f"images of {name}"},
            opts=kept(spec),
        )
        self.address = registry.status.apply(lambda status: status["registry_fqdn"])
        self.register_outputs({"address": self.address})


# What the machine starts as. cloud-init looks at its data at the first start of an instance only,
# and the API changes hardware of a stopped one: a new instance has it, on the same data disks.
_FIXED: Final = [
    "spec.cloud_init_user_data",
    "spec.resources",
    "spec.boot_disk",
    "spec.secondary_disks",
]


class Instance(pulumi.ComponentResource):
    """One machine; its private address and its data disks outlive a change of the machine."""

    address: pulumi.Output[str]
    """Private IPv4 address."""

    def __init__(
        self,
        name: str,
        machine: MachineSpec,
        *,
        project_id: str,
        subnet_id: pulumi.Input[str],
        image_family: str,
        data_disks: Sequence[dict[str, Any]] = (),
        user_data: pulumi.Input[str] | None = None,
        data: pulumi.ResourceOptions | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        """`data_disks` are DiskSpecs; `data` says what a destroy does with them."""
        super().__init__("soperator:infra:Instance", name, None, opts)
        allocation = child(
            self,
            "nebius:vpc/v1:Allocation",
            f"{name}-address",
            parent_id=project_id,
            spec=address_spec(subnet_id),
        )
        boot = self._disk(
            boot_disk_name(name, machine.boot_disk.type),
            project_id,
            disk_spec(
                machine.boot_disk.type, machine.boot_disk.size_gib, image_family=image_family
            ),
        )
        disks = [
            self._disk(f"{name}-data-{index}", project_id, spec, data)
            for index, spec in enumerate(data_disks)
        ]
        child(
            self,
            "nebius:compute/v1:Instance",
            name,
            parent_id=project_id,
            spec=machine_spec(
                machine,
                subnet_id=subnet_id,
                allocation_id=allocation.id,
                boot_disk_id=boot,
                data_disk_ids=disks,
                user_data=None if user_data is None else pulumi.Output.secret(user_data),
            ),
            opts=pulumi.ResourceOptions(replace_on_changes=_FIXED),
        )
        # The API gives a /32 CIDR.
        self.address = allocation.status.apply(
            lambda status: status["details"]["allocated_cidr"].split("/")[0]
        )
        self.register_outputs({"address": self.address})

    def _disk(
        self,
        name: str,
        project_id: str,
        spec: dict[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> pulumi.Output[str]:
        token = "nebius:compute/v1:Disk"  # noqa: S105
        return child(self, token, name, parent_id=project_id, spec=spec, opts=opts).id


class NfsServer(pulumi.ComponentResource):
    """The machine with its data disks, which a destroy keeps unless the stack purges."""

    address: pulumi.Output[str]
    """Private IPv4 address, the same for a new machine on the old disks."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        nfs: NfsSpec,
        *,
        subnet_id: pulumi.Input[str],
        cidrs: pulumi.Output[list[str]],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:NfsServer", name, None, opts)
        disks = nfs.data_disks
        machine = Instance(
            f"{name}-nfs",
            nfs,
            project_id=spec.nebius.project_id,
            subnet_id=subnet_id,
            image_family=IMAGE_FAMILY,
            data_disks=[disk_spec(disks.type, disks.size_gib) for _ in range(disks.count)],
            user_data=cidrs.apply(lambda found: nfs_user_data(spec, found)),
            data=kept(spec),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.address = machine.address
        self.register_outputs({"address": self.address})
