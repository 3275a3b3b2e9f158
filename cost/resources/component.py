"""One line of a bill: its quantity, the prices of a piece, and where both come from."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from cost.prices.price import HOURS_PER_MONTH, Price, UnknownPrice
from cost.traced import given, named


class Section(StrEnum):
    """Part of the bill."""

    COMPUTE = "Compute"
    BOOT_DISKS = "Boot disks"
    WORKER_DISKS = "Disks of workers"
    FILESYSTEMS = "Shared filesystems"
    OBJECT_STORAGE = "Object storage"
    NETWORK = "Networking"
    KUBERNETES = "Kubernetes and its charts"
    REGISTRY = "Container registry"


class Scope(StrEnum):
    """Which subtotal of the bill the line is in: of what the stack is built for, or also billed."""

    MAIN = "main"
    ALSO = "also billed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """US dollars for one piece (a node, a GiB) over an hour or a 730-hour month."""

    usd: Decimal
    per: str
    """Piece and period as printed, such as `node/h`."""
    is_hourly: bool

    @property
    def usd_per_month(self) -> Decimal:
        """US dollars for one piece over 730 hours."""
        return self.usd * HOURS_PER_MONTH if self.is_hourly else self.usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """So many units of one price in one piece: 64 vCPUs in a node, one GiB in a GiB."""

    count: int
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class CostComponent:
    """One line of the bill; `low` at min_nodes, `high` at max_nodes."""

    id: str
    """The declaration that the line prices, such as `nodes.workers[worker].boot_disk`."""
    section: Section
    name: str
    size: str
    quantity_low: int | None
    """Pieces of `rate.per`: nodes, GiB or addresses; None when the stack does not say."""
    quantity_high: int | None
    rate: Rate | None
    terms: tuple[Term, ...]
    """What one piece is made of; empty when a price is unknown."""
    keys: tuple[str, ...]
    """Config keys that the amount follows from, as the user writes them."""
    scope: Scope = Scope.MAIN
    unknown: str | None = None
    """Why the line has no amount; None when it has one."""
    nodeset: str | None = None
    """Nodeset whose nodes these are."""
    num_per_node: int = 0
    """Pieces of `rate.per` that one node takes, where the line is of a node group."""

    @property
    def prices(self) -> tuple[Price, ...]:
        """Every price that the rate is made of."""
        return tuple(term.price for term in self.terms)

    @property
    def monthly_low_usd(self) -> Decimal | None:
        """US dollars a 730-hour month at the least number of nodes; None when unknown."""
        return self._monthly(self.quantity_low)

    @property
    def monthly_high_usd(self) -> Decimal | None:
        """US dollars a 730-hour month at the greatest number of nodes; None when unknown."""
        return self._monthly(self.quantity_high)

    @property
    def monthly_usd_of_node(self) -> Decimal:
        """US dollars a 730-hour month for what one node takes, on the bill or not; 0 if unknown."""
        return Decimal(0) if self.rate is None else self.num_per_node * self.rate.usd_per_month

    def _monthly(self, quantity: int | None) -> Decimal | None:
        if self.rate is None or quantity is None:
            return None
        usd = quantity * self.rate.usd
        if self.rate.is_hourly:
            usd = usd * named(HOURS_PER_MONTH, f"{HOURS_PER_MONTH} h", "", beside=usd)
        return named(usd, self.name, f"explain {self.id}")


def simple_line(
    *,
    id: str,
    section: Section,
    name: str,
    size: str,
    quantity: int | None,
    price: Price | UnknownPrice,
    per: str,
    unit: str,
    keys: tuple[str, ...],
    scope: Scope = Scope.MAIN,
    quantity_high: int | None = None,
    nodeset: str | None = None,
    unknown: str | None = None,
    num_per_node: int = 0,
) -> CostComponent:
    """A line whose piece has one price; `unknown` says why it has no quantity, `unit` of what.

    What is free is free in any quantity.
    """
    known = isinstance(price, Price)
    if known and quantity is None and price.usd == 0:
        quantity, unknown = 0, None
    if known and quantity is not None:
        quantity = given(quantity, unit, id, beside=price.usd)
    return CostComponent(
        id=id,
        section=section,
        name=name,
        size=size,
        quantity_low=quantity,
        quantity_high=quantity if quantity_high is None else quantity_high,
        rate=Rate(usd=price.usd, per=per, is_hourly=per.endswith("/h")) if known else None,
        terms=(Term(count=1, price=price),) if known else (),
        keys=keys,
        scope=scope,
        unknown=unknown or (None if known else price.reason),
        nodeset=nodeset,
        num_per_node=num_per_node,
    )


def rate_of(terms: tuple[Term, ...], per: str) -> Rate:
    """US dollars an hour for a piece made of the terms."""
    usd = sum((term.count * term.price.usd for term in terms), Decimal(0))
    return Rate(usd=usd, per=per, is_hourly=True)
