"""Recording rules: prices as series, and what the stack costs an hour by what its nodes do. Pure.

Owns the names `soperator:*`. A price is of the day on which it was rendered: the label `priced`.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from cost.burn import Burn

NODE_USD: Final = "soperator:node_usd_per_hour"
AROUND_USD: Final = "soperator:around_usd_per_hour"
BUDGET_USD: Final = "soperator:budget_usd_per_month"
STATE_USD: Final = "soperator:node_state_usd_per_hour"
JOBS_USD: Final = "soperator:jobs_usd_per_hour"
STACK_USD: Final = "soperator:stack_usd_per_hour"
INTERVAL_S: Final = 30
"""As often as Soperator's exporter asks Slurm."""

# A cloud node that is powered down is listed by Slurm and costs nothing.
_PAID: Final = 'slurm_node_info{state_is_powered_down!="true"}'
_OF_NODESET: Final = f'(label_replace({_PAID}, "nodeset", "$1", "node_name", "(.+)-[0-9]+")))'
PAID_NODES: Final = f"count by (nodeset) (group by (node_name, nodeset) {_OF_NODESET}"
"""Nodes that cost money by their nodeset, priced or not."""
_NODES: Final = (
    "count by (nodeset, state_base) (group by (node_name, nodeset, state_base) " + _OF_NODESET
)
# Without the Slurm exporter nothing is known, which is not the same as no cost.
_SEEN: Final = "and on () (count(slurm_node_info) > 0)"
_BUSY: Final = 'state_base=~"ALLOCATED|MIXED"'


def records(burn: Burn) -> list[dict[str, Any]]:
    """The rules, in the order in which they need each other."""
    priced = "" if burn.price_date is None else burn.price_date.isoformat()
    prices = [
        _constant(NODE_USD, usd, nodeset=nodeset, priced=priced)
        for nodeset, usd in burn.node_usd_per_hour.items()
        if usd is not None
    ]
    prices.append(_constant(AROUND_USD, burn.around_usd_per_hour, priced=priced))
    if burn.budget_usd_per_month is not None:
        prices.append(_constant(BUDGET_USD, burn.budget_usd_per_month))
    return [
        *prices,
        _record(STATE_USD, f"{_NODES} * on (nodeset) group_left () max by (nodeset) ({NODE_USD})"),
        _record(JOBS_USD, f"(sum({STATE_USD}{{{_BUSY}}}) or vector(0)) {_SEEN}"),
        _record(STACK_USD, f"((sum({STATE_USD}) or vector(0)) + max({AROUND_USD})) {_SEEN}"),
    ]


def usd_of_a_day(record: str) -> str:
    """PromQL of the US dollars that were seen to be spent in the last day."""
    # An average would take the hours that are not there, of a pause, for hours as the others.
    return f"sum_over_time({record}[1d]) / {3600 // INTERVAL_S}"


def _constant(name: str, usd: Decimal, **labels: str) -> dict[str, Any]:
    rule = _record(name, f"vector({usd:.6f})")
    return {**rule, "labels": labels} if labels else rule


def _record(name: str, expression: str) -> dict[str, Any]:
    return {"record": name, "expr": expression}
