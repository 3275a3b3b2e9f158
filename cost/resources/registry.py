"""Images in a container registry of the project, by GiB and month."""

from __future__ import annotations

from cost.component import CostComponent, Scope, Section, simple_line
from cost.price_book import PriceBook, Unit


def registry_line(book: PriceBook) -> CostComponent:
    """Images that users push; Soperator's own come from the provider's registry."""
    return simple_line(
        id="registry",
        section=Section.REGISTRY,
        name="images of the project",
        size="not declared",
        quantity=None,
        price=book.find("container-registry/storage", Unit.GIB_MONTH),
        per="GiB/mo",
        unit="GiB",
        keys=(),
        scope=Scope.BEYOND,
        unknown="the stack does not declare how much its users push",
    )
