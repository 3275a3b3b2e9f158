"""The network of a stack: network, subnet and the address of the login node."""

from __future__ import annotations

from typing import Final

import pulumi

from infra.components.base import child
from infra.providers.nebius.resource import Resource
from infra.render.kube_cluster import login_allocation
from stacks.spec import StackSpec

_SUBNET: Final = "nebius:vpc/v1:Subnet"


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
        self._subnet: Resource | None = None
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
            self._subnet = child(
                self,
                _SUBNET,
                f"{name}-subnet",
                parent_id=project,
                spec={
                    "network_id": network_id,
                    "ipv4_private_pools": {"use_network_pools": True},
                    "ipv4_public_pools": {"use_network_pools": True},
                },
            )
            self.subnet_id = self._subnet.id
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
        self._name, self._project = name, project
        self.register_outputs({"subnet_id": self.subnet_id, "login_ip": self.login_ip})

    def private_cidrs(self) -> pulumi.Output[list[str]]:
        """IPv4 blocks that addresses of nodes come from; a subnet that exists is read."""
        subnet = self._subnet or child(
            self,
            _SUBNET,
            f"{self._name}-existing-subnet",
            parent_id=self._project,
            opts=pulumi.ResourceOptions(id=self.subnet_id),
        )
        return subnet.status.apply(lambda status: list(status["ipv4_private_cidrs"]))
