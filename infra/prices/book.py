"""The prices of a stack with what was kept of live estimates: price_book(spec, state)."""

from __future__ import annotations

from pathlib import Path

from cost.price_book import PriceBook
from cost.price_layers import layered
from infra.prices import cache
from stacks.spec import StackSpec


def price_book(spec: StackSpec, state: Path) -> PriceBook:
    """Book, kept estimates and contract of the stack; the network is not asked."""
    live = cache.load(state, spec.nebius.region) if spec.live_prices else None
    return layered(spec, live)
