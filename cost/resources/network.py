"""Addresses: the public one of the login node, and those that the cluster takes besides."""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit


def login_address_line(book: PriceBook) -> CostComponent:
    """The public address of the login node."""
    return simple_line(
        id="login.address",
        section=Section.NETWORK,
        name="public IP (login)",
        size="1",
        quantity=1,
        price=book.find("public-ip", Unit.ADDRESS_HOUR),
        per="address/h",
        unit="addresses",
        keys=(),
    )


def allocation_line(book: PriceBook) -> CostComponent:
    """The public endpoint of the Kubernetes API, an address that seed 000 does not list."""
    return simple_line(
        id="cluster.endpoint_address",
        section=Section.NETWORK,
        name="endpoint address (Kubernetes)",
        size="1",
        quantity=1,
        price=book.find("public-ip/kubernetes-endpoint", Unit.ADDRESS_HOUR),
        per="address/h",
        unit="addresses",
        keys=(),
        scope=Scope.BEYOND,
    )
