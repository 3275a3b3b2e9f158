"""The network of a stack: network, subnet and the public address of the login node."""

from __future__ import annotations

import pulumi

from infra.components.base import child
from stacks.cluster_spec import NebiusSpec


class Network(pulumi.ComponentResource):
    """Makes what the stack does not bring: network, subnet; always the login allocation."""

    subnet_id: pulumi.Input[str]
    allocation_id: pulumi.Output[str]
    login_ip: pulumi.Output[str]
    """Public IPv4 address of the login node."""

    def __init__(
        self, name: str, spec: NebiusSpec, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("soperator:infra:Network", name, None, opts)
        project = spec.project_id
        if spec.subnet_id is not None:
            self.subnet_id = spec.subnet_id
        else:
            network_id: pulumi.Input[str]
            if spec.network_id is not None:
                network_id = spec.network_id
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
        allocation = child(
            self,
            "nebius:vpc/v1:Allocation",
            f"{name}-login",
            parent_id=project,
            spec={"ipv4_public": {"subnet_id": self.subnet_id}},
        )
        self.allocation_id = allocation.id
        # The API gives a /32 CIDR.
        self.login_ip = allocation.status.apply(
            lambda status: status["details"]["allocated_cidr"].split("/")[0]
        )
        self.register_outputs({"subnet_id": self.subnet_id, "login_ip": self.login_ip})
