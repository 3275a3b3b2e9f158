"""Shared filesystems by GiB and month: jail, submounts, accounting, controller spool."""

from __future__ import annotations

from collections.abc import Iterator

from cost.component import CostComponent, Input, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.spec import StackSpec
from stacks.storage_spec import FilesystemType


def filesystem_lines(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    """One line a filesystem; an existing one has no declared size."""
    storage = spec.storage
    yield _line("jail", "storage.jail", storage.jail.size_gib, storage.jail.type, book)
    for mount in storage.submounts:
        name, key = f"{mount.name} (submount)", f"storage.submounts[{mount.name}]"
        yield _line(name, key, mount.size_gib, mount.type, book)
    if storage.accounting is not None:
        own = storage.accounting
        yield _line("accounting", "storage.accounting", own.size_gib, own.type, book)
    spool = storage.controller_spool
    yield _line("controller_spool", "storage.controller_spool", spool.size_gib, spool.type, book)


def _line(
    name: str, key: str, size_gib: int | None, type_: FilesystemType, book: PriceBook
) -> CostComponent:
    is_existing = size_gib is None
    return simple_line(
        id=key,
        section=Section.FILESYSTEMS,
        name=name,
        size="existing" if is_existing else f"{size_gib} GiB",
        quantity=size_gib,
        price=book.find(f"filesystem/{type_}", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(f"{key}.existing_id",) if is_existing else (f"{key}.size_gib", f"{key}.type"),
        unknown="an existing filesystem: the stack does not declare its size"
        if is_existing
        else None,
        quantity_factors=()
        if is_existing
        else (Input(name="GiB", value=str(size_gib), source=f"{key}.size_gib"),),
    )
