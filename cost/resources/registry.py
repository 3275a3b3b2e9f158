"""Images in a container registry of the project, by GiB and month."""

from __future__ import annotations

from typing import Final

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit
from stacks.spec import StackSpec

_SKU: Final = "container-registry/storage"


def registry_line(spec: StackSpec, book: PriceBook) -> CostComponent:
    """Images that users push; Soperator's own come from the provider's registry."""
    size_gib = spec.storage.registry_gib
    if size_gib is not None:
        key = "storage.registry_gib"
        return simple_line(
            id="registry",
            section=Section.REGISTRY,
            name="images of the project",
            size=f"{size_gib} GiB" if size_gib else "< 1 GiB",
            quantity=size_gib,
            price=book.find(_SKU, Unit.GIB_MONTH),
            per="GiB/mo",
            unit="GiB",
            keys=(key,),
        )
    return simple_line(
        id="registry",
        section=Section.REGISTRY,
        name="images of the project",
        size="not declared",
        quantity=None,
        price=book.find(_SKU, Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(),
        scope=Scope.BEYOND,
        unknown="the stack does not declare how much its users push",
    )
