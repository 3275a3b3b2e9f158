"""The stack output `cost`: outputs(bill) -> plain values, the same on every run.

Money is text of a decimal, or None with its reason under `reasons`. Dates, never ages: an
unchanged stack must preview unchanged tomorrow.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from cost import snapshot, snapshot_format
from cost.chat_table import speed_text
from cost.component import Scope
from cost.estimate import Estimate
from cost.rounding import rounded
from cost.unit_costs import NotKnown, UnitCosts

if TYPE_CHECKING:
    from cost.bill import Bill

_CENT: Final = Decimal("0.01")
_TINY: Final = Decimal("0.000001")


def outputs(bill: Bill) -> dict[str, object]:
    """The stack output `cost`: figures, and the snapshot that the next preview compares with."""
    return {
        **figures(bill.estimate, bill.unit_costs),
        "snapshot": snapshot_format.plain(snapshot.take(bill)),
    }


def figures(estimate: Estimate, unit_costs: UnitCosts) -> dict[str, object]:
    """Figures of the bill; unit costs are the first scenario's, for the whole cluster."""
    listed = estimate.subtotal(Scope.SEED)
    chat = None if isinstance(unit_costs.chats, NotKnown) else unit_costs.chats[0]
    run = None if isinstance(unit_costs.run, NotKnown) else unit_costs.run
    reasons = {
        **({"per_run_usd": str(unit_costs.run)} if run is None else {}),
        **(
            {"per_chat_usd": str(unit_costs.chats), "per_1m_tokens_usd": str(unit_costs.chats)}
            if chat is None
            else {}
        ),
    }
    return {
        "hourly_usd": money(estimate.hourly_low_usd, _TINY),
        "hourly_high_usd": money(estimate.hourly_high_usd, _TINY),
        "monthly_low_usd": money(estimate.monthly_low_usd),
        "monthly_high_usd": money(estimate.monthly_high_usd),
        "subtotal_low_usd": money(listed.low_usd),
        "subtotal_high_usd": money(listed.high_usd),
        "is_lower_bound": estimate.is_lower_bound,
        "unpriced": [f"{line.name}: {line.unknown}" for line in estimate.unpriced],
        "per_run_usd": None if run is None else money(run.cluster_usd, _TINY),
        "per_1m_tokens_usd": None if chat is None else money(chat.cluster_usd_per_1m_tokens, _TINY),
        "per_chat_usd": None if chat is None else money(chat.cluster_low_usd, _TINY),
        "serving_node_per_chat_usd": None
        if chat is None or chat.serving_usd is None
        else money(chat.serving_usd, _TINY),
        "basis": "NOT KNOWN" if chat is None else speed_text(chat),
        "reasons": reasons,
        "price_book": estimate.book_name,
        "price_date": None if estimate.price_date is None else estimate.price_date.isoformat(),
        "heading": estimate.heading,
    }


def money(usd: Decimal, step: Decimal = _CENT) -> str:
    """The amount as text, rounded half up to the step."""
    return f"{rounded(usd, step):f}"


def number(value: Decimal) -> str:
    """The number as text with at most six digits behind the point and no zeros at the end."""
    text = f"{rounded(value, _TINY):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
