"""The machine of an NFS server: its hours, its boot disk, its data disks and its address."""

from __future__ import annotations

from collections.abc import Iterator

from cost.component import CostComponent, Input, Scope, Section, rate_of, simple_line
from cost.price_book import PriceBook, Unit, UnknownPrice
from cost.resources.nodes import machine_terms
from stacks.nfs_spec import DataDisksSpec, NfsSpec
from stacks.node_spec import BootDiskSpec
from stacks.spec import StackSpec


def nfs_server_lines(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    """Every line of the server; none where the stack declares none."""
    nfs = spec.nfs
    if nfs is None:
        return
    yield _machine_line(nfs, book)
    yield _disk_line(nfs.boot_disk, book, "nfs.boot_disk", "NFS server", Section.BOOT_DISKS)
    yield _disk_line(nfs.data_disks, book, "nfs.data_disks", "NFS data", Section.FILESYSTEMS)
    if nfs.public_ip:
        yield simple_line(
            id="nfs.public_ip",
            section=Section.NETWORK,
            name="public IP (NFS server)",
            size="1",
            quantity=1,
            price=book.find("public-ip", Unit.ADDRESS_HOUR),
            per="address/h",
            unit="addresses",
            keys=("nfs.public_ip",),
            scope=Scope.BEYOND,
        )


def _machine_line(nfs: NfsSpec, book: PriceBook) -> CostComponent:
    found = machine_terms(nfs, book)
    is_known = not isinstance(found, UnknownPrice)
    return CostComponent(
        id="nfs",
        section=Section.COMPUTE,
        name=f"NFS server ({nfs.platform})",
        size=f"1 x {nfs.preset}",
        quantity_low=1,
        quantity_high=1,
        rate=rate_of(found, "machine/h") if is_known else None,
        terms=found if is_known else (),
        unit="machines",
        keys=("nfs.platform", "nfs.preset", "nfs.billing"),
        scope=Scope.BEYOND,
        unknown=None if is_known else found.reason,
        quantity_factors=(Input(name="machines", value="1", source="nfs"),),
    )


def _disk_line(
    disk: BootDiskSpec | DataDisksSpec, book: PriceBook, key: str, name: str, section: Section
) -> CostComponent:
    count = disk.count if isinstance(disk, DataDisksSpec) else 1
    counted = (f"{key}.count",) if isinstance(disk, DataDisksSpec) else ()
    return simple_line(
        id=key,
        section=section,
        name=f"{name} ({disk.type.removeprefix('network-').removeprefix('ssd-')})",
        size=f"{count} x {disk.size_gib} GiB",
        quantity=count * disk.size_gib,
        price=book.find(f"disk/{disk.type}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(f"{key}.size_gib", f"{key}.type", *counted),
        scope=Scope.BEYOND,
        quantity_factors=(
            Input(name="disks", value=str(count), source=", ".join(counted) or key),
            Input(name="GiB of a disk", value=str(disk.size_gib), source=f"{key}.size_gib"),
        ),
    )
