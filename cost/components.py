"""What a stack pays for, line by line, in the order of the bill: components(spec, book).

Owns quantities and which prices apply. Does not own totals (estimate.py) or layout (table.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from cost.price_book import HOURS_PER_MONTH, Price, PriceBook, Unit, UnknownPrice
from stacks.catalog import find_preset
from stacks.spec import Billing, DiskType, NodeGroupSpec, StackSpec, WorkerSpec


class Section(StrEnum):
    """Part of the bill."""

    COMPUTE = "Compute"
    BOOT_DISKS = "Boot disks"
    FILESYSTEMS = "Shared filesystems"
    OBJECT_STORAGE = "Object storage"
    NETWORK = "Networking"


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
class CostComponent:
    """One line of the bill; `low` at min_nodes, `high` at max_nodes."""

    section: Section
    name: str
    size: str
    quantity_low: int | None
    """Pieces of `rate.per`: nodes, GiB or addresses; None when the stack does not say."""
    quantity_high: int | None
    rate: Rate | None
    prices: tuple[Price, ...]
    """Every price that the rate is made of."""
    unknown: str | None = None
    """Why the line has no amount; None when it has one."""
    nodeset: str | None = None
    """Nodeset whose nodes these are."""

    @property
    def monthly_low_usd(self) -> Decimal | None:
        """US dollars a 730-hour month at the least number of nodes; None when unknown."""
        return self._monthly(self.quantity_low)

    @property
    def monthly_high_usd(self) -> Decimal | None:
        """US dollars a 730-hour month at the greatest number of nodes; None when unknown."""
        return self._monthly(self.quantity_high)

    def _monthly(self, quantity: int | None) -> Decimal | None:
        if self.rate is None or quantity is None:
            return None
        return quantity * self.rate.usd_per_month


_FILESYSTEM_SKU: Final = "filesystem/"
_DISK_SKU: Final = "disk/"


def components(spec: StackSpec, book: PriceBook) -> tuple[CostComponent, ...]:
    """Every line of the stack's bill."""
    return (
        *(_nodes(label, group, book) for label, group in _groups(spec)),
        *(_boot_disks(label, group, book) for label, group in _groups(spec)),
        *_filesystems(spec, book),
        *_object_storage(spec, book),
        _priced(
            section=Section.NETWORK,
            name="public IP address (login)",
            size="1",
            quantity=1,
            price=book.find("public-ip", Unit.ADDRESS_HOUR),
            per="address/h",
        ),
    )


def node_rate(group: NodeGroupSpec, book: PriceBook) -> Rate | UnknownPrice:
    """US dollars an hour for one node of the group, without its disk."""
    found = _node_prices(group, book)
    return found if isinstance(found, UnknownPrice) else found[0]


def _groups(spec: StackSpec) -> Iterator[tuple[str, NodeGroupSpec]]:
    for worker in spec.nodes.workers:
        yield worker.name, worker
    yield "system", spec.nodes.system
    yield "controller", spec.nodes.controller
    yield "login", spec.nodes.login
    if spec.nodes.accounting is not None:
        yield "accounting", spec.nodes.accounting


def _nodes(label: str, group: NodeGroupSpec, book: PriceBook) -> CostComponent:
    found = _node_prices(group, book)
    unknown = found.reason if isinstance(found, UnknownPrice) else None
    rate, prices = (None, ()) if isinstance(found, UnknownPrice) else found
    return CostComponent(
        section=Section.COMPUTE,
        name=f"{label} ({group.platform})",
        size=f"{_range(group)} x {group.preset}",
        quantity_low=group.min_nodes,
        quantity_high=group.max_nodes,
        rate=rate,
        prices=prices,
        unknown=unknown,
        nodeset=group.name if isinstance(group, WorkerSpec) else None,
    )


def _node_prices(
    group: NodeGroupSpec, book: PriceBook
) -> tuple[Rate, tuple[Price, ...]] | UnknownPrice:
    preset = find_preset(group.platform, group.preset)
    if preset is None:
        return UnknownPrice(
            sku=f"{group.platform}/{group.preset}",
            reason=f"'{group.preset}' of '{group.platform}' is not in stacks/catalog.py",
        )
    suffix = "/preemptible" if group.billing is Billing.PREEMPTIBLE else ""
    wanted = [
        ("gpu", Unit.GPU_HOUR, preset.gpus),
        ("vcpu", Unit.VCPU_HOUR, preset.vcpus),
        ("ram", Unit.GIB_HOUR, preset.memory_gib),
    ]
    usd, prices = Decimal(0), list[Price]()
    for part, unit, count in wanted if preset.gpus else wanted[1:]:
        price = book.find(f"{group.platform}/{part}{suffix}", unit)
        if isinstance(price, UnknownPrice):
            return price
        usd += count * price.usd
        prices.append(price)
        if price.covers_vm:
            # One line per GPU since 2025-10-01: adding vCPUs and memory would charge them twice.
            break
    return Rate(usd=usd, per="node/h", is_hourly=True), tuple(prices)


def _boot_disks(label: str, group: NodeGroupSpec, book: PriceBook) -> CostComponent:
    size_gib = group.boot_disk.size_gib
    return _priced(
        section=Section.BOOT_DISKS,
        name=f"{label} ({group.boot_disk.type.removeprefix('network-')})",
        size=f"{_range(group)} x {size_gib} GiB",
        quantity=group.min_nodes * size_gib,
        quantity_high=group.max_nodes * size_gib,
        price=book.find(f"{_DISK_SKU}{group.boot_disk.type}", Unit.GIB_MONTH),
        per="GiB/mo",
        nodeset=group.name if isinstance(group, WorkerSpec) else None,
    )


def _filesystems(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    storage = spec.storage
    yield _filesystem("jail", storage.jail.size_gib, storage.jail.type, book)
    for mount in storage.submounts:
        yield _filesystem(f"{mount.name} (submount)", mount.size_gib, mount.type, book)
    if storage.accounting is not None:
        yield _filesystem("accounting", storage.accounting.size_gib, storage.accounting.type, book)
    spool = storage.controller_spool
    yield _filesystem("controller_spool", spool.size_gib, spool.type, book)


def _filesystem(name: str, size_gib: int | None, type_: DiskType, book: PriceBook) -> CostComponent:
    return _priced(
        section=Section.FILESYSTEMS,
        name=name,
        size="existing" if size_gib is None else f"{size_gib} GiB",
        quantity=size_gib,
        price=book.find(f"{_FILESYSTEM_SKU}{type_}", Unit.GIB_MONTH),
        per="GiB/mo",
    )


def _object_storage(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    backup, bucket_gib = spec.storage.backup, spec.storage.config_bucket_gib
    price = book.find("object-storage/standard", Unit.GIB_MONTH)
    if backup is not None:
        yield _priced(
            section=Section.OBJECT_STORAGE,
            name="daily jail backups",
            size=f"{backup.keep_daily} x {backup.size_gib} GiB",
            quantity=backup.keep_daily * backup.size_gib,
            price=price,
            per="GiB/mo",
        )
    if bucket_gib is not None:
        yield _priced(
            section=Section.OBJECT_STORAGE,
            name="JSON configs (versioned)",
            size=f"{bucket_gib} GiB" if bucket_gib else "< 1 GiB",
            quantity=bucket_gib,
            price=price,
            per="GiB/mo",
        )


def _priced(
    *,
    section: Section,
    name: str,
    size: str,
    quantity: int | None,
    price: Price | UnknownPrice,
    per: str,
    quantity_high: int | None = None,
    nodeset: str | None = None,
) -> CostComponent:
    """A line with one price."""
    known = isinstance(price, Price)
    unknown = None if known else price.reason
    if quantity is None:
        unknown = "an existing filesystem: the stack does not declare its size"
    return CostComponent(
        section=section,
        name=name,
        size=size,
        quantity_low=quantity,
        quantity_high=quantity if quantity_high is None else quantity_high,
        rate=Rate(usd=price.usd, per=per, is_hourly=per.endswith("/h")) if known else None,
        prices=(price,) if known else (),
        unknown=unknown,
        nodeset=nodeset,
    )


def _range(group: NodeGroupSpec) -> str:
    if group.min_nodes == group.max_nodes:
        return str(group.min_nodes)
    return f"{group.min_nodes}..{group.max_nodes}"
