"""Object storage by GiB and month: backups of the jail, versioned configs, the engine's state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cost.component import CostComponent, Input, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.spec import StackSpec

SKU: Final = "object-storage/standard"


def object_storage_lines(spec: StackSpec, book: PriceBook) -> Iterator[CostComponent]:
    """Declared backups and config bucket."""
    backup, bucket_gib = spec.storage.backup, spec.storage.config_bucket_gib
    price = book.find(SKU, Unit.GIB_MONTH)
    if backup is not None:
        key = "storage.backup"
        yield simple_line(
            id=key,
            section=Section.OBJECT_STORAGE,
            name="daily jail backups",
            size=f"{backup.keep_daily} x {backup.size_gib} GiB",
            quantity=backup.keep_daily * backup.size_gib,
            price=price,
            per="GiB/mo",
            unit="GiB",
            keys=(f"{key}.keep_daily", f"{key}.size_gib"),
            quantity_factors=(
                Input(name="copies", value=str(backup.keep_daily), source=f"{key}.keep_daily"),
                Input(name="GiB of a copy", value=str(backup.size_gib), source=f"{key}.size_gib"),
            ),
        )
    if bucket_gib is not None:
        key = "storage.config_bucket_gib"
        yield simple_line(
            id=key,
            section=Section.OBJECT_STORAGE,
            name="versioned JSON configs",
            size=f"{bucket_gib} GiB" if bucket_gib else "< 1 GiB",
            quantity=bucket_gib,
            price=price,
            per="GiB/mo",
            unit="GiB",
            keys=(key,),
        )


def state_bucket_line(book: PriceBook) -> CostComponent:
    """The bucket of the engine's state: none with another backend, and never a GiB."""
    return simple_line(
        id="state_bucket",
        section=Section.OBJECT_STORAGE,
        name="bucket of the state",
        size="0..1 GiB",
        quantity=0,
        quantity_high=1,
        price=book.find(SKU, Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(),
        scope=Scope.BEYOND,
    )
