"""What a stack pays for, line by line, in the order of the bill: components(spec, book).

A line has its quantity, the prices of a piece, and where both come from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from functools import partial
from typing import Any, Final

from cost.prices.book import (
    HOURS_PER_MONTH,
    Price,
    PriceBook,
    Unit,
    UnknownPrice,
    node_sku,
    nodeset_sku,
)
from cost.traced import given, named
from stacks.catalog import ATTACHED, Preset
from stacks.machines import ROLES, home_volume_gib, observability_volumes
from stacks.spec import StackSpec
from stacks.spec.nodes import (
    Billing,
    BootDiskSpec,
    DataDisksSpec,
    ImageDiskSpec,
    LocalDiskSpec,
    MachineSpec,
    NodeGroupSpec,
    WorkerSpec,
)
from stacks.spec.storage import DiskType


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
    prices: tuple[Price, ...]
    """Every price that it is made of."""

    @property
    def is_hourly(self) -> bool:
        """Whether it is for an hour; else it is for a month."""
        return self.per.endswith("/h")

    @property
    def usd_per_month(self) -> Decimal:
        """US dollars for one piece over 730 hours."""
        return self.usd * HOURS_PER_MONTH if self.is_hourly else self.usd


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
        return () if self.rate is None else self.rate.prices

    @property
    def low_usd(self) -> Decimal | None:
        """US dollars a 730-hour month at the least number of nodes; None when unknown."""
        return self._monthly(self.quantity_low)

    @property
    def high_usd(self) -> Decimal | None:
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


_PIECES: Final = {
    Unit.GIB_MONTH: ("GiB/mo", "GiB"),
    Unit.ADDRESS_HOUR: ("address/h", "addresses"),
    Unit.CLUSTER_HOUR: ("cluster/h", "clusters"),
}
"""Unit of a price -> how it is printed behind an amount, and the noun of a quantity."""


def _line(
    book: PriceBook,
    sku: str,
    *,
    id: str,
    quantity: int | None,
    quantity_high: int | None = None,
    unknown: str | None = None,
    **values: Any,
) -> CostComponent:
    """A line whose piece has one price; `unknown` says why it has no quantity.

    What is free is free in any quantity.
    """
    price, rate = book.find(sku), None
    if isinstance(price, UnknownPrice):
        unknown = unknown or price.reason
    else:
        per, pieces = _PIECES[price.unit]
        rate = Rate(usd=price.usd, per=per, prices=(price,))
        if quantity is None and price.usd == 0:
            quantity, unknown = 0, None
        if quantity is not None:
            quantity = given(quantity, pieces, id, beside=price.usd)
    return CostComponent(
        id=id,
        quantity_low=quantity,
        quantity_high=quantity if quantity_high is None else quantity_high,
        rate=rate,
        unknown=unknown,
        **values,
    )


def components(spec: StackSpec, book: PriceBook) -> tuple[CostComponent, ...]:
    """Every line of the stack's bill: those of the scope main, then what is also billed.

    Of an attached cluster its nodes alone: what else it costs, others pay.
    """
    declared = tuple(groups(spec))
    nodes = (node_line(group, book) for group in declared)
    if spec.attached is not None:
        return tuple(nodes)
    boot = partial(_node_disk_line, book, section=Section.BOOT_DISKS)
    return (
        *nodes,
        *(
            boot(each, each.spec.boot_disk, f"{each.key}.boot_disk", each.label)
            for each in declared
        ),
        *_filesystem_lines(spec, book),
        *_object_storage_lines(spec, book),
        *(line for group in declared for line in _worker_disk_lines(group, book)),
        *_service_lines(spec, book, declared),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One node group under the name and the config key that its user knows it by."""

    label: str
    key: str
    spec: NodeGroupSpec
    min_nodes: int
    """Least nodes that are paid for; none of a nodeset of a paused stack."""
    max_nodes: int
    count_keys: tuple[str, ...]
    """Keys of the number of nodes: `nodes` where it is fixed, and the pause where it is on."""

    @property
    def nodeset(self) -> str | None:
        """Name of the nodeset, where the group is one."""
        return self.spec.name if isinstance(self.spec, WorkerSpec) else None

    @property
    def is_fixed(self) -> bool:
        """Whether the number of nodes never changes."""
        return self.min_nodes == self.max_nodes

    @property
    def count(self) -> str:
        """Number of nodes as printed, such as `3..9`."""
        return str(self.min_nodes) if self.is_fixed else f"{self.min_nodes}..{self.max_nodes}"


def groups(spec: StackSpec) -> Iterator[Group]:
    """Every node group, in the order of the bill."""
    nodes = spec.nodes
    declared: list[tuple[str, str, NodeGroupSpec | None]] = [
        *((worker.name, f"nodes.workers[{worker.name}]", worker) for worker in nodes.workers),
        *((role, f"nodes.{role}", getattr(nodes, role)) for role in ROLES),
    ]
    if spec.attached is not None:
        del declared[len(nodes.workers) :]
    for label, key, group in declared:
        if group is not None:
            ends, paid = (group.min_nodes, group.max_nodes), nodes.counts(group)
            names = ("nodes",) if ends[0] == ends[1] else ("min_nodes", "max_nodes")
            paused = ("nodes.paused",) if paid != ends else ()
            keys = (*(f"{key}.{name}" for name in names), *paused)
            least, most = (named(count, "nodes", ", ".join(keys)) for count in paid)
            yield Group(
                label=label, key=key, spec=group, min_nodes=least, max_nodes=most, count_keys=keys
            )


def node_line(group: Group, book: PriceBook) -> CostComponent:
    """The nodes of one group, without their boot disks."""
    spec = group.spec
    billing = "" if spec.billing is Billing.ON_DEMAND else f", {spec.billing}"
    return _machine_line(
        spec,
        book,
        id=group.key,
        name=f"{group.label} ({spec.platform}{billing})",
        size=f"{group.count} x {spec.preset}",
        quantity_low=group.min_nodes,
        quantity_high=group.max_nodes,
        keys=(
            *group.count_keys,
            *(f"{group.key}.{key}" for key in ("platform", "preset", "billing")),
        ),
        nodeset=group.nodeset,
        num_per_node=1,
    )


def _machine_line(
    machine: MachineSpec, book: PriceBook, *, per: str = "node/h", **values: Any
) -> CostComponent:
    """The line of equal machines, as `values` say, at what one of them costs."""
    found = node_rate(machine, book)
    is_known = isinstance(found, Rate)
    return CostComponent(
        section=Section.COMPUTE,
        rate=replace(found, per=per) if is_known else None,
        unknown=None if is_known else found.reason,
        **values,
    )


def preset_rate(
    platform: str, preset: str, book: PriceBook, billing: Billing = Billing.ON_DEMAND
) -> Rate | UnknownPrice:
    """The same of a machine of which nothing but the hardware is known."""
    disk = BootDiskSpec(size_gib=0)
    machine = MachineSpec(platform=platform, preset=preset, boot_disk=disk, billing=billing)
    return node_rate(machine, book)


def node_rate(group: MachineSpec, book: PriceBook) -> Rate | UnknownPrice:
    """US dollars an hour for one machine, without its disks."""
    preset = group.hardware
    if preset is None:
        return UnknownPrice(
            reason=f"'{group.preset}' of '{group.platform}' is not in stacks/catalog.py"
        )
    if group.platform.startswith(ATTACHED):
        return _attached_rate(group, preset, book)
    wanted = (
        ("gpu", "GPUs", preset.gpus),
        ("vcpu", "vCPUs", preset.vcpus),
        ("ram", "GiB of memory", preset.memory_gib),
    )
    usd, prices = Decimal(0), list[Price]()
    for part, name, count in wanted if preset.gpus else wanted[1:]:
        price = book.find(node_sku(group.platform, part, group.billing))
        if isinstance(price, UnknownPrice):
            return price
        usd += named(count, name, "stacks/catalog.py", beside=price.usd) * price.usd
        prices.append(price)
        if price.covers_vm:
            # One line per GPU since 2025-10-01: adding vCPUs and memory would charge them twice.
            break
    return Rate(usd=usd, per="node/h", prices=tuple(prices))


def _attached_rate(group: MachineSpec, preset: Preset, book: PriceBook) -> Rate | UnknownPrice:
    """What the stack declares of a nodeset that others run."""
    assert isinstance(group, WorkerSpec)
    price = book.prices.get(nodeset_sku(group.name))
    if price is None:
        why = f"no price of nodeset '{group.name}' is declared; give one in node_prices"
        return UnknownPrice(reason=why)
    is_per_gpu = price.unit is Unit.GPU_HOUR
    count, unit = (preset.gpus, "GPUs") if is_per_gpu else (1, "nodes")
    count = named(count, unit, "attached.nodesets", beside=price.usd)
    return Rate(usd=count * price.usd, per="node/h", prices=(price,))


def _node_disk_line(
    book: PriceBook,
    group: Group,
    disk: BootDiskSpec | LocalDiskSpec | ImageDiskSpec,
    key: str,
    label: str,
    **values: Any,
) -> CostComponent:
    """The line of the disk that `key` declares, for all nodes of the group."""
    size_gib = named(disk.size_gib, "GiB of a disk", f"{key}.size_gib")
    return _line(
        book,
        f"disk/{disk.type}",
        id=key,
        name=_disk_name(label, disk.type),
        size=f"{group.count} x {disk.size_gib} GiB",
        quantity=group.min_nodes * size_gib,
        quantity_high=group.max_nodes * size_gib,
        keys=(*group.count_keys, f"{key}.size_gib", f"{key}.type"),
        nodeset=group.nodeset,
        num_per_node=disk.size_gib,
        **values,
    )


def _disk_name(label: str, kind: DiskType) -> str:
    return f"{label} ({kind.removeprefix('network-').removeprefix('ssd-')})"


def _worker_disk_lines(group: Group, book: PriceBook) -> Iterator[CostComponent]:
    """The local disks and the image disk of one nodeset; other groups have none."""
    if not isinstance(group.spec, WorkerSpec):
        return
    line = partial(_node_disk_line, book, group, section=Section.WORKER_DISKS, scope=Scope.ALSO)
    for disk in group.spec.local_disks:
        yield line(disk, f"{group.key}.local_disks[{disk.name}]", f"{group.label} {disk.name}")
    if (image := group.spec.image_disk) is not None:
        yield line(image, f"{group.key}.image_disk", f"{group.label} images")


def _filesystem_lines(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    """One line a filesystem; an existing one has no declared size."""
    storage = spec.storage
    for name, place, each in (
        ("jail", "jail", storage.jail),
        *(
            (f"{each.name} (submount)", f"submounts[{each.name}]", each)
            for each in storage.submounts
        ),
        ("accounting", "accounting", storage.accounting),
        ("controller_spool", "controller_spool", storage.controller_spool),
    ):
        if each is None:
            continue
        key, is_existing = f"storage.{place}", each.size_gib is None
        why = "an existing filesystem: the stack does not declare its size"
        yield _line(
            book,
            f"filesystem/{each.type}",
            id=key,
            section=Section.FILESYSTEMS,
            name=name,
            size="existing" if is_existing else f"{each.size_gib} GiB",
            quantity=each.size_gib,
            keys=(f"{key}.existing_id",) if is_existing else (f"{key}.size_gib", f"{key}.type"),
            unknown=why if is_existing else None,
        )


SKU: Final = "object-storage/standard"


def _object_storage_lines(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    """Declared backups and config bucket."""
    backup, bucket_gib = spec.storage.backup, spec.storage.config_bucket_gib
    line = partial(_line, book, SKU, section=Section.OBJECT_STORAGE)
    if backup is not None:
        yield line(
            id="storage.backup",
            name="daily jail backups",
            size=f"{backup.keep_daily} x {backup.size_gib} GiB",
            quantity=backup.keep_daily * backup.size_gib,
            keys=("storage.backup.keep_daily", "storage.backup.size_gib"),
        )
    if bucket_gib is not None:
        yield line(
            id="storage.config_bucket_gib",
            name="versioned JSON configs",
            size=_declared_gib(bucket_gib),
            quantity=bucket_gib,
            keys=("storage.config_bucket_gib",),
        )


def _declared_gib(size_gib: int) -> str:
    return f"{size_gib} GiB" if size_gib else "< 1 GiB"


def _service_lines(
    spec: StackSpec, book: PriceBook, declared: tuple[Group, ...]
) -> Iterator[CostComponent]:
    """Addresses, Kubernetes and its charts, the NFS server, the state's bucket and the registry."""
    line = partial(_line, book)
    address = partial(line, section=Section.NETWORK)
    also = partial(address, "public-ip", scope=Scope.ALSO)
    yield address(
        "public-ip",
        id="login.address",
        name="public IP (login)",
        size="1" if spec.login.public_ip else "private",
        quantity=1 if spec.login.public_ip else 0,
        keys=("login.public_ip",),
    )
    for group in declared:
        if group.spec.public_ip:
            yield also(
                id=f"{group.key}.public_ip",
                name=f"public IP ({group.label} nodes)",
                size=group.count,
                quantity=group.min_nodes,
                quantity_high=group.max_nodes,
                keys=(*group.count_keys, f"{group.key}.public_ip"),
                nodeset=group.nodeset,
                num_per_node=1,
            )
    yield line(
        "mk8s/control-plane",
        id="cluster.control_plane",
        section=Section.KUBERNETES,
        name="control plane",
        size=f"1, etcd of {spec.cluster.etcd_size}",
        quantity=1,
        keys=("cluster.etcd_size",),
        scope=Scope.ALSO,
    )
    claims = {"home": home_volume_gib(spec), **observability_volumes(spec)}
    claimed = ", ".join(name for name, gib in claims.items() if gib)
    size_gib = sum(claims.values())
    yield line(
        f"disk/{DiskType.NETWORK_SSD}",  # the provider's default class
        id="charts.volumes",
        section=Section.KUBERNETES,
        name="volumes of the charts",
        size=f"{size_gib} GiB ({claimed})" if size_gib else "none claimed",
        quantity=size_gib,
        keys=("soperator.observability", "soperator.nfs_home"),
        scope=Scope.ALSO,
    )
    if (nfs := spec.nfs) is not None:
        yield _machine_line(
            nfs,
            book,
            per="machine/h",
            id="nfs",
            name=f"NFS server ({nfs.platform})",
            size=f"1 x {nfs.preset}",
            quantity_low=1,
            quantity_high=1,
            keys=("nfs.platform", "nfs.preset", "nfs.billing"),
            scope=Scope.ALSO,
        )
        yield _nfs_disk_line(book, nfs.boot_disk, "boot_disk", "server", Section.BOOT_DISKS)
        yield _nfs_disk_line(book, nfs.data_disks, "data_disks", "data", Section.FILESYSTEMS)
        if nfs.public_ip:
            yield also(
                id="nfs.public_ip",
                name="public IP (NFS server)",
                size="1",
                quantity=1,
                keys=("nfs.public_ip",),
            )
    yield line(
        SKU,
        id="state_bucket",  # none with another backend of the engine, and never a GiB
        section=Section.OBJECT_STORAGE,
        name="bucket of the state",
        size="0..1 GiB",
        quantity=0,
        quantity_high=1,
        keys=(),
        scope=Scope.ALSO,
    )
    # Images that users push; Soperator's own come from the provider's registry.
    pushed_gib = spec.storage.registry_gib
    is_declared = pushed_gib is not None
    yield line(
        "container-registry/storage",
        id="registry",
        section=Section.REGISTRY,
        name="images of the project",
        size=_declared_gib(pushed_gib) if is_declared else "not declared",
        quantity=pushed_gib,
        keys=("storage.registry_gib",) if is_declared else (),
        scope=Scope.MAIN if is_declared else Scope.ALSO,
        unknown=None if is_declared else "the stack does not declare how much its users push",
    )
    yield address(
        "public-ip/kubernetes-endpoint",
        id="cluster.endpoint_address",
        name="endpoint address (Kubernetes)",
        size="1" if spec.cluster.public_endpoint else "private",
        quantity=1 if spec.cluster.public_endpoint else 0,
        keys=("cluster.public_endpoint",),
        scope=Scope.ALSO,
    )


def _nfs_disk_line(
    book: PriceBook, disk: BootDiskSpec | DataDisksSpec, key: str, label: str, section: Section
) -> CostComponent:
    is_counted = isinstance(disk, DataDisksSpec)
    key, count = f"nfs.{key}", disk.count if is_counted else 1
    return _line(
        book,
        f"disk/{disk.type}",
        id=key,
        section=section,
        name=_disk_name(f"NFS {label}", disk.type),
        size=f"{count} x {disk.size_gib} GiB",
        quantity=count * disk.size_gib,
        keys=(f"{key}.size_gib", f"{key}.type", *([f"{key}.count"] if is_counted else ())),
        scope=Scope.ALSO,
    )
