"""The network of a stack: network, subnet and the address of the login node."""

from __future__ import annotations

import pulumi

from infra.components.base import child
from infra.render.network import login_allocation
from stacks.spec import StackSpec


class Network(pulumi.ComponentResource):
    """Makes what the stack does not bring: network, subnet; always the login allocation."""

    subnet_id: pulumi.Input[str]
    allocation: pulumi.Resource
    allocation_id: pulumi.Output[str]
    login_ip: pulumi.Output[str]
    """IPv4 address of the login node."""

    def __init__(
        self, name: str, spec: StackSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Network", name, None, opts)
        nebius, project = spec.nebius, spec.nebius.project_id
        if nebius.subnet_id is not None:
            self.subnet_id = nebius.subnet_id
        else:
            network_id: pulumi.Input[str]
            if nebius.network_id is not None:
                network_id = nebius.network_id
            else:
                network_id = child(
                    self, "nebius:vpc/v1:Network", f"{name}-network", parent_id=project
                ).id
            self.subnet_id = child(
                self,
                "nebius:vpc/v1:Subnet",
                f"{name}-subnet",
                parent_id=project,
                spec={
                    "network_id": network_id,
                    "ipv4_private_pools": {"use_network_pools": True},
                    "ipv4_public_pools": {"use_network_pools": True},
                },
            ).id
        noun, wanted = login_allocation(spec, subnet_id=self.subnet_id)
        allocation = child(
            self, "nebius:vpc/v1:Allocation", f"{name}-{noun}", parent_id=project, spec=wanted
        )
        self.allocation = allocation
        self.allocation_id = allocation.id
        # The API gives a /32 CIDR.
        self.login_ip = allocation.status.apply(
            lambda status: status["details"]["allocated_cidr"].split("/")[0]
        )
        self.register_outputs({"subnet_id": self.subnet_id, "login_ip": self.login_ip})
