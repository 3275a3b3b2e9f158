"""One line of a bill: its quantity, the prices of a piece, and where both come from."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from cost.prices.price import HOURS_PER_MONTH, Price, UnknownPrice


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
    """Whether seed 000 lists the line."""

    SEED = "seed 000"
    BEYOND = "beyond seed 000"


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
    unit: str
    """What is counted, such as `vCPU`."""
    price: Price


@dataclass(frozen=True, slots=True)
class Input:
    """One number of a formula and where it comes from."""

    name: str
    value: str
    source: str


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
    unit: str
    """Name of one piece in a formula, such as `nodes` or `GiB`."""
    keys: tuple[str, ...]
    """Config keys that the amount follows from, as the user writes them."""
    scope: Scope = Scope.SEED
    unknown: str | None = None
    """Why the line has no amount; None when it has one."""
    nodeset: str | None = None
    """Nodeset whose nodes these are."""
    quantity_factors: tuple[Input, ...] = ()
    """Numbers whose product is the quantity, where it is one."""
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

    @property
    def formula(self) -> str:
        """How US dollars a month follow from `inputs`."""
        piece = " + ".join(
            f"USD per {term.price.unit}"
            if len(self.terms) == 1 and term.count == 1
            else f"{term.unit} x USD per {term.price.unit}"
            for term in self.terms
        )
        if not piece:
            return f"UNPRICED: {self.unknown}"
        piece = f"({piece})" if len(self.terms) > 1 else piece
        counted = " x ".join(factor.name for factor in self.quantity_factors) or self.unit
        hours = f" x {HOURS_PER_MONTH} h" if self.rate is not None and self.rate.is_hourly else ""
        return f"{counted} x {piece}{hours}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """Every number of `formula`, with its config key or the source and date of its price."""
        found = list(self.quantity_factors)
        if not found and self.quantity_low is not None:
            found.append(Input(self.unit, _range(self.quantity_low, self.quantity_high), self.id))
        for term in self.terms:
            if len(self.terms) > 1 or term.count != 1:
                found.append(Input(term.unit, str(term.count), "stacks/catalog.py"))
            price = term.price
            found.append(
                Input(
                    f"USD per {price.unit}",
                    f"{price.usd:f}",
                    f"{price.sku}: {price.source}, {price.dated}",
                )
            )
        return tuple(found)

    def _monthly(self, quantity: int | None) -> Decimal | None:
        if self.rate is None or quantity is None:
            return None
        return quantity * self.rate.usd_per_month


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
    scope: Scope = Scope.SEED,
    quantity_high: int | None = None,
    nodeset: str | None = None,
    unknown: str | None = None,
    quantity_factors: tuple[Input, ...] = (),
    num_per_node: int = 0,
) -> CostComponent:
    """A line whose piece has one price; `unknown` says why it has no quantity.

    What is free is free in any quantity.
    """
    known = isinstance(price, Price)
    if known and quantity is None and price.usd == 0:
        quantity, unknown = 0, None
    return CostComponent(
        id=id,
        section=section,
        name=name,
        size=size,
        quantity_low=quantity,
        quantity_high=quantity if quantity_high is None else quantity_high,
        rate=Rate(usd=price.usd, per=per, is_hourly=per.endswith("/h")) if known else None,
        terms=(Term(count=1, unit=unit, price=price),) if known else (),
        unit=unit,
        keys=keys,
        scope=scope,
        unknown=unknown or (None if known else price.reason),
        nodeset=nodeset,
        quantity_factors=quantity_factors,
        num_per_node=num_per_node,
    )


def rate_of(terms: tuple[Term, ...], per: str) -> Rate:
    """US dollars an hour for a piece made of the terms."""
    usd = sum((term.count * term.price.usd for term in terms), Decimal(0))
    return Rate(usd=usd, per=per, is_hourly=True)


def _range(low: int, high: int | None) -> str:
    return str(low) if high is None or low == high else f"{low}..{high}"
