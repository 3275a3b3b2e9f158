"""What one subject (break-even, runs, policy) adds to a bill: `Part`, made from `Inputs`.

Owns the shape only: bill.py collects parts, table.py prints them, snapshot.py keeps their amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType

from cost.estimate import Estimate
from cost.layout import Table
from cost.price_book import PriceBook
from cost.run_record import RunRecord
from cost.unit_costs import UnitCosts
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """US dollars of one unit (a chat, a run) that the next preview compares with."""

    name: str
    """Key in the outputs, such as `per_chat_usd` or `per_run_usd[finetune]`."""
    label: str
    """What people read, such as `$/chat`."""
    usd: Decimal | None
    """None when it is not known."""
    basis: str
    """Where it comes from, in one line: a declared source, or the job that measured it."""
    keys: tuple[str, ...] = ()
    """Config keys that it depends on beyond those of the bill's lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Tables and notes for people, amounts to compare, plain values for JSON."""

    name: str
    """Key in the JSON document."""
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    amounts: tuple[Amount, ...] = ()
    draw_figures: Callable[[], tuple[str, ...]] = tuple
    """Draws its charts as inline SVG; only HTML asks for them, so a preview does not wait."""
    plain: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Everything that a part may be computed from."""

    spec: StackSpec
    book: PriceBook
    estimate: Estimate
    unit_costs: UnitCosts
    records: Sequence[RunRecord]


PartMaker = Callable[[Inputs], Iterable[Part]]
"""What a subject gives to bill.PARTS; no part where the stack declares nothing for it."""
