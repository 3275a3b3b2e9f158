"""Shipped stacks with a policy, as the inputs of a bill's part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cost.chat.unit_costs import UnitCosts
from cost.prices.book import PriceBook
from cost.resources.estimate import estimate
from cost.run_record import RunRecord
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cost import PolicySpec


def inputs_of(
    spec: StackSpec, records: Sequence[RunRecord] = (), book: PriceBook | None = None
) -> UnitCosts:
    """What a part of the stack's bill is computed from."""
    book = book or PriceBook.load(spec.prices)
    return UnitCosts(estimate=estimate(spec, book), records=records)


def with_policy(name: str, **rules: Any) -> UnitCosts:
    """The shipped stack under the rules."""
    return inputs_of(replace(load_stack(name), policy=PolicySpec(**rules)))
