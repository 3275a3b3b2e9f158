"""What accepting a failure costs a month: the part of the nodes' price that buys nothing. Pure.

- a rate under its least: 1 - measured / least of the nodes that it names;
- a slowdown or spread of p percent over its most: p / (100 + p) of them;
- a fact (a GPU missing, ECC off, wrong values, a place that is not shared): the whole node;
- NOT RUN: not known.
The price of a node is the stack's own, with its boot disk, for 730 hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from cost.price_book import HOURS_PER_MONTH
from cost.run_rates import RunRates
from infra.accept.result import Check


def node_prices(rates: RunRates, nodes: tuple[str, ...]) -> dict[str, Decimal | None]:
    """US dollars a month of each node by its name, which is its nodeset's and a number."""
    found: dict[str, Decimal | None] = {}
    for node in nodes:
        nodeset = node.rpartition("-")[0]
        rate = rates.node_usd_per_hour.get(nodeset)
        disk = rates.disk_usd_per_hour.get(nodeset, Decimal(0))
        found[node] = None if rate is None else (rate + disk) * HOURS_PER_MONTH
    return found


def accepting_usd(check: Check, prices: Mapping[str, Decimal | None]) -> Decimal | None:
    """US dollars a month; None where nothing failed, no node is named, or a price is not known."""
    if check.outcome != "FAIL" or not check.nodes:
        return None
    whole = Decimal(0)
    for node in check.nodes:
        price = prices.get(node)
        if price is None:
            return None
        whole += price
    return (whole * lost_share(check)).quantize(Decimal("0.01"))


def lost_share(check: Check) -> Decimal:
    """The share of its nodes' price that a failed check says is lost."""
    if check.limit is None or check.measured is None:
        return Decimal(1)
    measured = Decimal(str(check.measured))
    least = check.limit.get("at_least")
    if least is not None:
        share = 1 - measured / Decimal(str(least))
    elif check.unit == "percent":
        share = measured / (100 + measured)
    else:
        return Decimal(1)
    return min(max(share, Decimal(0)), Decimal(1))
