"""An NFS server on a machine beside the kube cluster, whose pods mount its export."""

from __future__ import annotations

import pulumi

from infra.components.base import kept
from infra.components.instance import Instance
from infra.render.nodes import IMAGE_FAMILY, disk_spec, nfs_user_data
from stacks.spec import StackSpec
from stacks.spec.nodes import NfsSpec


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
