"""What a pause of the workers saves: pause_saving(spec, book), the running bill less the paused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from cost.estimate import estimate
from cost.price import HOURS_PER_MONTH
from cost.price_book import PriceBook
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseSaving:
    """US dollars a 730-hour month that the workers of a stack cost; `low` at min_nodes."""

    low_usd_per_month: Decimal
    high_usd_per_month: Decimal
    is_lower_bound: bool
    """Whether a line of the workers has no price."""

    @property
    def low_usd_per_hour(self) -> Decimal:
        """US dollars an hour at min_nodes."""
        return self.low_usd_per_month / HOURS_PER_MONTH

    @property
    def high_usd_per_hour(self) -> Decimal:
        """US dollars an hour at max_nodes."""
        return self.high_usd_per_month / HOURS_PER_MONTH

    def __str__(self) -> str:
        hour = _span(self.low_usd_per_hour, self.high_usd_per_hour)
        month = _span(self.low_usd_per_month, self.high_usd_per_month)
        least = "at least " if self.is_lower_bound else ""
        return f"{least}{hour} an hour, {month} a month of {HOURS_PER_MONTH} hours"


def pause_saving(spec: StackSpec, book: PriceBook) -> PauseSaving:
    """What the stack pays for its workers while it is not paused."""
    running, paused = (
        estimate(replace(spec, nodes=replace(spec.nodes, paused=value)), book)
        for value in (False, True)
    )
    return PauseSaving(
        low_usd_per_month=running.monthly_low_usd - paused.monthly_low_usd,
        high_usd_per_month=running.monthly_high_usd - paused.monthly_high_usd,
        is_lower_bound=any(line.nodeset and line.unknown for line in running.components),
    )


def _span(low: Decimal, high: Decimal) -> str:
    return f"${low:,.2f}" if low == high else f"${low:,.2f} to ${high:,.2f}"
