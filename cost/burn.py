"""What an hour of a running stack costs by what runs: Burn, for its alerts and dashboards.

Owns which rates a monitor needs. The amounts are those of run_rates.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from cost.estimate import Estimate
from cost.price_book import PriceBook
from cost.run_rates import run_rates
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Burn:
    """US dollars an hour of one stack without tax, with the day of its prices."""

    node_usd_per_hour: Mapping[str, Decimal | None]
    """One worker node of each nodeset, without its disks; None is a price that is not known."""
    around_usd_per_hour: Decimal
    """Every other node, disks, filesystems and addresses."""
    is_lower_bound: bool
    """Whether a line of the bill has no price."""
    budget_usd_per_month: Decimal | None
    """What the stack declares for its jobs; None without a budget."""
    book: str
    """Price book."""
    price_date: date | None
    """Day of the oldest price in use; None where no price is known."""

    @property
    def unpriced_nodesets(self) -> tuple[str, ...]:
        """Nodesets whose price is not known; a sum without them is a least."""
        return tuple(name for name, usd in self.node_usd_per_hour.items() if usd is None)

    @property
    def prices(self) -> str:
        """Where the amounts come from, in words."""
        day = "" if self.price_date is None else f" of {self.price_date}"
        return f"prices of book {self.book}{day}"


def burn(spec: StackSpec, estimate: Estimate, book: PriceBook) -> Burn:
    """What the stack costs an hour, at its prices of now."""
    rates = run_rates(spec, estimate, book)
    return Burn(
        node_usd_per_hour=rates.node_usd_per_hour,
        around_usd_per_hour=rates.control_plane_usd_per_hour + rates.storage_usd_per_hour,
        is_lower_bound=rates.is_lower_bound,
        budget_usd_per_month=None if spec.budget is None else spec.budget.usd_per_month,
        book=estimate.book_name,
        price_date=estimate.price_date,
    )
