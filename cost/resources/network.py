"""Addresses: the public one of the login node, and those that the cluster takes besides."""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from cost.resources.groups import Group
from stacks.spec import StackSpec


def login_address_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """The public address of the login node, where it has one."""
    return simple_line(
        id="login.address",
        section=Section.NETWORK,
        name="public IP (login)",
        size="1" if spec.login.public_ip else "private",
        quantity=1 if spec.login.public_ip else 0,
        price=book.find("public-ip", Unit.ADDRESS_HOUR),
        per="address/h",
        unit="addresses",
        keys=("login.public_ip",),
    )


def node_address_line(group: Group, book: PriceBook) -> CostComponent:
    """The public addresses of a group whose nodes have them."""
    return simple_line(
        id=f"{group.key}.public_ip",
        section=Section.NETWORK,
        name=f"public IP ({group.label} nodes)",
        size=group.count,
        quantity=group.min_nodes,
        quantity_high=group.max_nodes,
        price=book.find("public-ip", Unit.ADDRESS_HOUR),
        per="address/h",
        unit="addresses",
        keys=(*group.count_keys, f"{group.key}.public_ip"),
        scope=Scope.BEYOND,
        nodeset=group.nodeset,
        quantity_factors=(group.count_input,),
        num_per_node=1,
    )


def allocation_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """The public endpoint of the Kubernetes API, an address that seed 000 does not list."""
    return simple_line(
        id="cluster.endpoint_address",
        section=Section.NETWORK,
        name="endpoint address (Kubernetes)",
        size="1" if spec.cluster.public_endpoint else "private",
        quantity=1 if spec.cluster.public_endpoint else 0,
        price=book.find("public-ip/kubernetes-endpoint", Unit.ADDRESS_HOUR),
        per="address/h",
        unit="addresses",
        keys=("cluster.public_endpoint",),
        scope=Scope.BEYOND,
    )
